"""Integers and what they mean, where QuantizeLinear and DequantizeLinear say it by constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cpuconv.elements import S8, U8
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import constant, operand
from cpuconv.kernels.binding.place import FLOAT32

BYTES = (U8.dtype, S8.dtype)
_PRECISIONS = {"QuantizeLinear": "precision", "DequantizeLinear": "output_dtype"}  # attributes: types of floats


class Scaled(NamedTuple):
    """Integers and what they mean."""

    name: str
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def one(self) -> bool:
        """Whether all have one scale."""
        return self.scale.size == self.zero.size == 1

    def same(self, other: Scaled) -> bool:
        """Whether the other's integers mean the same."""
        return (self.scale, self.zero, self.zero.dtype) == (other.scale, other.zero, other.zero.dtype)


def scaled(graph: Graph, node: Node | None, op: str) -> Scaled | None:
    """What a node of such an operator reads or gives, its scale and zero point being constants."""
    if node is None or node.op != op or node.meaning is not None or node["block_size"]:
        return None
    if (node[_PRECISIONS[op]] or FLOAT32) != FLOAT32:
        return None
    scale, zero = (constant(graph, operand(node, at)) for at in (1, 2))
    name = node.inputs[0] if op == "DequantizeLinear" else node.outputs[0]
    dtype = graph.value(name).dtype
    if scale is None or (zero is None and operand(node, 2)) or scale.dtype != FLOAT32 or not (scale > 0).all():
        return None
    if dtype is None or dtype.kind not in "iu":  # of less than a byte, or floats
        return None
    return Scaled(name, scale.ravel(), np.zeros(1, dtype) if zero is None else zero.ravel(), node["axis"])


def dequantised(graph: Graph, name: str) -> Scaled | None:
    """What DequantizeLinear reads where it gives a tensor of that name."""
    return scaled(graph, graph.producer(name), "DequantizeLinear") if name else None


def stored(y: Scaled) -> dict[str, Any]:
    """The attributes of a product that stores such integers."""
    return {"y": y.zero.dtype, "y_scale": float(y.scale[0]), "y_zero_point": int(y.zero[0])}
