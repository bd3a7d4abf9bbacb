"""A convolution as an ONNX file of one node, or quantized, for peers that run whole networks.

A quantized one is one QLinearConv, or a Conv between DequantizeLinear and QuantizeLinear.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, checker, helper, numpy_helper

from bench.peers.base import Form, NetworkPeer, symmetric_pads
from bench.typed import Data, Scales
from cpuconv.elements import F32, S8, U8, Element
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32

TENSORS = {F32: TensorProto.FLOAT, U8: TensorProto.UINT8, S8: TensorProto.INT8}
MICROSOFT = "com.microsoft"  # ONNX Runtime's own operators
CHANNELS_LAST = (0, 2, 3, 1)  # axes of an NHWC array in NCHW
CHANNELS_FIRST = (0, 3, 1, 2)  # the inverse


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
    """Return a float32 model: input 'x', output 'y', weights and bias as initializers."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **_attributes(problem))
    return _model(dataclasses.replace(problem, types=ALL_F32), [node], {"w": w, "b": bias})


def qlinear(problem: ConvProblem, given: Data, channels_last: bool) -> bytes:
    """Return a model of one QLinearConv; with `channels_last` ONNX Runtime's own variant in NHWC."""
    scales = _scales(given)
    attributes = _attributes(problem) | ({"channels_last": 1} if channels_last else {})
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = helper.make_node("QLinearConv", inputs, ["y"], domain=MICROSOFT if channels_last else "", **attributes)
    constants = _constants(problem, scales) | {"w": given.w, "b": given.bias, "wz": np.int8(0)}
    return _model(problem, [node], constants, channels_last)


def dequantized(problem: ConvProblem, given: Data) -> bytes:
    """Return a model of a Conv with dequantized operands; its output is quantized unless it is float32."""
    scales, count = _scales(given), problem.k
    constants = _constants(problem, scales) | {"w": given.w, "wz": np.zeros(count, np.int8)}
    constants |= {"b": given.bias, "bs": scales.sums, "bz": np.zeros(count, np.int32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0),
        helper.make_node(
            "Conv", ["xf", "wf", "bf"], ["yf" if problem.types.y.integer else "y"], **_attributes(problem)
        ),
    ]
    if problem.types.y.integer:
        nodes.append(helper.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]))
    return _model(problem, nodes, constants)


def _scales(given: Data) -> Scales:
    if given.scales is None:
        raise ValueError("Argument 'given' must be of integers.")
    return given.scales


def _constants(problem: ConvProblem, scales: Scales) -> dict[str, np.ndarray | np.generic]:
    types = problem.types
    found: dict[str, Any] = {"xs": scales.x_scale, "xz": types.x.dtype.type(scales.x_zero), "ws": scales.w_scale}
    return found | ({"ys": scales.y_scale, "yz": types.y.dtype.type(scales.y_zero)} if types.y.integer else {})


def _attributes(problem: ConvProblem) -> dict[str, Any]:
    p = problem
    top, bottom, left, right = p.pads
    if pads := symmetric_pads(p):
        (top, left), (bottom, right) = pads, pads
    return {
        "kernel_shape": [p.r, p.s],
        "strides": list(p.stride),
        "pads": [top, left, bottom, right],
        "dilations": list(p.dilation),
        "group": p.groups,
    }


def _model(
    problem: ConvProblem, nodes: list[NodeProto], constants: dict[str, Any], channels_last: bool = False
) -> bytes:
    def port(name: str, element: Element, shape: tuple[int, ...]) -> Any:
        shape = tuple(shape[axis] for axis in CHANNELS_LAST) if channels_last else shape
        return helper.make_tensor_value_info(name, TENSORS[element], shape)

    graph = helper.make_graph(
        nodes,
        "conv",
        [port("x", problem.types.x, problem.in_shape)],
        [port("y", problem.types.y, problem.out_shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    # Every engine reads this opset and format version.
    opsets = [helper.make_opsetid("", 13), *([helper.make_opsetid(MICROSOFT, 1)] if channels_last else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    if not channels_last:  # the variant is not in ONNX
        checker.check_model(model)
    return model.SerializeToString()
