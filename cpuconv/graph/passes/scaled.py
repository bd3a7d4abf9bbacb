"""Quantised tensors: integers with the constant scales and zero points of a QuantizeLinear or DequantizeLinear."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cpuconv.elements import S8, U8
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import constant, operand
from cpuconv.kernels.binding.tensor_view import FLOAT32

INT8_DTYPES = (U8.dtype, S8.dtype)
QUANTISATION = frozenset({"QuantizeLinear", "DequantizeLinear"})
_PRECISIONS = {"QuantizeLinear": "precision", "DequantizeLinear": "output_dtype"}  # attributes that state float types


class Scaled(NamedTuple):
    """Name, scales, zero points and channel axis of a quantised tensor."""

    name: str
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def one(self) -> bool:
        """Whether there is one scale and one zero point."""
        return self.scale.size == self.zero.size == 1

    def attributes(self, name: str) -> dict[str, Any]:
        """Attributes with the scale and zero point of an operand of this name, if there is one of each."""
        return {f"{name}_scale": float(self.scale[0]), f"{name}_zero_point": int(self.zero[0])}

    def same(self, other: Scaled) -> bool:
        """Whether another tensor has the same scale, zero point and type."""
        return (self.scale, self.zero, self.zero.dtype) == (other.scale, other.zero, other.zero.dtype)


def scaled(graph: Graph, node: Node | None, op: str) -> Scaled | None:
    """Quantised tensor that a node of operator `op` reads or writes; None if a scale or zero point is not constant."""
    if node is None or node.op != op or node.semantics is not None or node["block_size"]:
        return None
    if (node[_PRECISIONS[op]] or FLOAT32) != FLOAT32:
        return None
    scale, zero = (constant(graph, operand(node, at)) for at in (1, 2))
    name = node.inputs[0] if op == "DequantizeLinear" else node.outputs[0]
    dtype = graph.value(name).dtype
    if scale is None or (zero is None and operand(node, 2)) or scale.dtype != FLOAT32 or not (scale > 0).all():
        return None
    if dtype is None or dtype.kind not in "iu":  # 4-bit or floating-point types
        return None
    return Scaled(name, scale.ravel(), np.zeros(1, dtype) if zero is None else zero.ravel(), node["axis"])


def dequantised(graph: Graph, name: str) -> Scaled | None:
    """Quantised tensor that the DequantizeLinear of a value reads; None if there is none."""
    return scaled(graph, graph.producer(name), "DequantizeLinear") if name else None


def dequantised_int8(graph: Graph, name: str) -> Scaled | None:
    """As `dequantised`, for an int8 or uint8 tensor with one scale and zero point."""
    x = dequantised(graph, name)
    return x if x is not None and x.one and x.zero.dtype in INT8_DTYPES else None


def stored(y: Scaled) -> dict[str, Any]:
    """Attributes of a layer that stores its result in this type and scale."""
    return {"y": y.zero.dtype, **y.attributes("y")}
