"""A convolution as an ONNX file of one node, for peers that run whole networks."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from bench.peers.base import Form, NetworkPeer, symmetric_pads
from cpuconv.problem.problem import ConvProblem


def convolution(
    peer: NetworkPeer, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int
) -> list[Form]:
    """Prepare a peer's forms of a convolution, as a network of one node."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conv.onnx"
        path.write_bytes(conv_model(problem, w, bias))
        forms = peer.network(peer.converted(path, Path(folder)), {"x": x}, threads)
    return [dataclasses.replace(form, output=_first(form.output)) for form in forms]


def _first(outputs: Callable[[], np.ndarray | list[np.ndarray]]) -> Callable[[], np.ndarray]:
    return lambda: outputs()[0]


def conv_model(problem: ConvProblem, w: np.ndarray, bias: np.ndarray) -> bytes:
    """Return the serialized model: input 'x', output 'y', weights and bias as initializers."""
    p = problem
    top, bottom, left, right = p.pads
    if pads := symmetric_pads(p):
        (top, left), (bottom, right) = pads, pads
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        kernel_shape=[p.r, p.s],
        strides=list(p.stride),
        pads=[top, left, bottom, right],
        dilations=list(p.dilation),
        group=p.groups,
    )
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [p.n, p.c, p.h, p.w])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [p.n, p.k, p.oh, p.ow])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(bias, "b")],
    )
    # Every engine reads this opset and format version.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    checker.check_model(model)
    return model.SerializeToString()
