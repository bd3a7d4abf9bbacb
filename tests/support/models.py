"""ONNX models of a few nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def conv(x: str = "x", w: str = "w", y: str = "y", **attributes: Any) -> Any:
    """A node."""
    from onnx import helper

    return helper.make_node("Conv", [x, w], [y], **attributes)


def save(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, tuple[Any, ...]],
    weights: dict[str, tuple[int, ...]] | None = None,
    functions: tuple[Any, ...] = (),
) -> str:
    """Save a model whose output is that of its last node, with weights of zeros; gives its path."""
    import onnx
    from onnx import helper

    kind = onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(key, kind, shape) for key, shape in inputs.items()]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], kind, None)]
    tensors = [onnx.numpy_helper.from_array(np.zeros(shape, np.float32), key) for key, shape in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", values, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(function.domain, 1) for function in functions)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions), path)
    return str(path)
