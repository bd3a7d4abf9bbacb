"""Networks in QDQ form: int8 between operators, by QuantizeLinear and DequantizeLinear.

Scales are arbitrary, because no kernel depends on them and nothing is run. Quantised tensors and removed operators are
those of `onnxruntime.quantization.quantize_static`, with uint8 activations and int8 weights per channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_WITH_WEIGHTS = ("Conv", "Gemm")
_LEFT_OUT = ("Relu", "Clip")  # the range of the quantised output already clips the same values
_OPERATORS = frozenset(
    (*_WITH_WEIGHTS, *_LEFT_OUT, "Add", "AveragePool", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool")
    + ("Mul", "Resize", "Sigmoid", "Softmax")
)
_SCALE, _WEIGHT_SCALE = 0.05, 0.01


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the network with quantised tensors around its supported operators; its weights are constants."""
    graph = model.graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    form = _Form(constants)
    for value in graph.input:
        form.bytes_of(value.name)
    for node in graph.node:
        form.add(node)
    made = helper.make_graph(
        form.nodes,
        graph.name,
        graph.input,
        [helper.make_tensor_value_info(form.now[each.name], 1, None) for each in graph.output],
        [numpy_helper.from_array(array, name) for name, array in form.constants.items()],
    )
    return helper.make_model(made, opset_imports=model.opset_import)


class _Form:
    """Nodes and constants of the QDQ form, and the dequantised value by the name of its float original."""

    def __init__(self, constants: dict[str, np.ndarray]) -> None:
        self.constants = dict(constants)
        self.nodes: list[onnx.NodeProto] = []
        self.now: dict[str, str] = {}

    def add(self, node: onnx.NodeProto) -> None:
        """Add a node, between quantised tensors if it is supported."""
        known = node.op_type in _OPERATORS
        inputs = [self._input(node, at, name, known) for at, name in enumerate(node.input)]
        if node.op_type in _LEFT_OUT and inputs[0].endswith("_bytes"):
            self.now[node.output[0]] = inputs[0]
            return
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.input[:] = inputs
        self.nodes.append(new)
        if known:
            self.bytes_of(node.output[0])

    def bytes_of(self, name: str) -> str:
        """Return the name of the quantised and dequantised form of a value."""
        if name not in self.now:
            self.nodes.append(helper.make_node("QuantizeLinear", [name, *self._scale(_SCALE, np.uint8)], [name + "_q"]))
            self._back(name + "_q", name + "_bytes", self._scale(_SCALE, np.uint8))
            self.now[name] = name + "_bytes"
        return self.now[name]

    def _input(self, node: onnx.NodeProto, at: int, name: str, known: bool) -> str:
        if not name or not known or (node.op_type in ("Resize", "Clip") and at):
            return self.now.get(name, name)
        if name not in self.constants:
            return self.bytes_of(name)
        array = self.constants.pop(name) if node.op_type in _WITH_WEIGHTS else self.constants[name]
        if node.op_type not in _WITH_WEIGHTS:
            self.constants[name + "_q"] = np.full_like(array, 200, np.uint8)
            return self._back(name + "_q", name + "_bytes", self._scale(_SCALE, np.uint8))
        kind, scale = (np.int8, _WEIGHT_SCALE) if at == 1 else (np.int32, _SCALE * _WEIGHT_SCALE)
        quantised = np.rint(array / np.abs(array).max(initial=1e-9) * 127).astype(kind)
        self.constants[name + "_q"] = quantised
        scales = self._scale(scale, kind, len(array))
        return self._back(name + "_q", name + "_bytes", scales, axis=0)

    def _back(self, name: str, back: str, scale: list[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node("DequantizeLinear", [name, *scale], [back], **attributes))
        return back

    def _scale(self, scale: float, kind: type, count: int = 0) -> list[str]:
        """Return the names of a scale and a zero point, or of `count` of them per channel."""
        names = [f"{part}_{np.dtype(kind).name}_{count}" for part in ("scale", "zero")]
        shape = (count,) if count else ()
        self.constants[names[0]] = np.full(shape, scale, np.float32)
        self.constants[names[1]] = np.zeros(shape, kind)
        return names
