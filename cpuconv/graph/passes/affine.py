"""Merge chains of scales and shifts per channel into one Mul and one Add.

Pattern: a chain of BatchNormalization, Add, Sub, Mul, Div or Neg with constants that vary at most over channels; the
next node is the only reader of each. The chain has a BatchNormalization, or more nodes than necessary. Each node
computes s x + t, and so does the chain: s2 (s1 x + t1) + t2 = (s2 s1) x + (s2 t1 + t2). s and t are computed in float64
and rounded once: equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.base import is_float
from cpuconv.graph.passes.rewriting import (
    Maker,
    Pass,
    Rewrite,
    constant,
    per_channel,
    shape_of,
    sole_reader,
)
from cpuconv.symbolic.sizes import is_symbolic

OPERATORS = frozenset({"BatchNormalization", "Neg", "Add", "Sub", "Mul", "Div"})


class Affine(NamedTuple):
    """Affine function s x + t in float64; scale and shift have one number per channel, or one for all."""

    scale: np.ndarray
    shift: np.ndarray

    @classmethod
    def identity(cls) -> Affine:
        """Identity function."""
        return cls(np.ones(1), np.zeros(1))

    def of(self, channels: int) -> Affine:
        """Broadcast scale and shift to all channels; unchanged if the number of channels is symbolic."""
        return self if is_symbolic(channels) else Affine(*(np.broadcast_to(each, channels) for each in self))

    def then(self, other: Affine) -> Affine:
        """Compose: apply `other` to the result of this."""
        return Affine(self.scale * other.scale, self.shift * other.scale + other.shift)

    @property
    def fits(self) -> bool:
        """Whether float32 can represent all numbers, and no scale becomes 0."""
        with np.errstate(over="ignore", under="ignore"):
            scale, shift = (each.astype(np.float32) for each in self)
        return bool(np.isfinite(scale).all() and np.isfinite(shift).all() and ((scale == 0) == (self.scale == 0)).all())


def affine(graph: Graph, node: Node, name: str, axis: int, shape: Sequence[int]) -> Affine | None:
    """Affine function of the value `name` that a node computes, with channels along `axis`; None if it is none.

    Only the rank and the channels of `shape` matter: with open sizes, others are arbitrary.
    """
    if node.op not in OPERATORS or node.semantics is not None:
        return None
    before, after = graph.value(name), graph.value(node.outputs[0])
    if axis >= len(shape) or (before.dtype is not None and not is_float(before.dtype)):
        return None
    if before.concrete and after.concrete and before != after:
        return None
    if node.op == "BatchNormalization":
        return _normalization(graph, node) if axis == 1 and node.inputs[0] == name else None
    if node.op == "Neg":
        return Affine(np.full(1, -1.0), np.zeros(1))
    if node.inputs[0] == node.inputs[1]:
        return None
    first = node.inputs[0] == name
    array = constant(graph, node.inputs[1 if first else 0])
    vector = None if array is None else per_channel(array, shape, axis, shared=True)
    if vector is None or (node.op == "Div" and not first):
        return None
    same = Affine.identity()
    if node.op == "Add":
        return Affine(same.scale, vector)
    if node.op == "Sub":
        return Affine(same.scale, -vector) if first else Affine(-same.scale, vector)
    with np.errstate(divide="ignore"):
        return Affine(vector if node.op == "Mul" else 1 / vector, same.shift)


def _normalization(graph: Graph, node: Node) -> Affine | None:
    """Affine form of (x - mean) / sqrt(variance + epsilon) · scale + bias."""
    arrays = [constant(graph, name) for name in node.inputs[1:]]
    scale, bias, mean, variance = (None if array is None else array.astype(np.float64) for array in arrays)
    if scale is None or bias is None or mean is None or variance is None:
        return None
    with np.errstate(all="ignore"):
        scale = scale / np.sqrt(variance + node["epsilon"])
        return Affine(scale, bias - mean * scale)


def chain_behind(graph: Graph, name: str, axis: int, shape: Sequence[int], total: Affine) -> tuple[list[Node], Affine]:
    """Chain of affine nodes after a value, each with a single reader, and their composition after `total`.

    The chain ends before numbers that float32 cannot represent; later nodes form a chain of their own.
    """
    nodes: list[Node] = []
    while (reader := sole_reader(graph, name)) is not None:
        step = affine(graph, reader, name, axis, shape)
        if step is None or not (following := total.then(step)).fits:
            break
        nodes.append(reader)
        total, name = following, reader.outputs[0]
    return nodes, total


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    for name in dict.fromkeys(filter(None, node.inputs)):
        if name in graph.constants or len(shape_of(graph, name)) < 2:
            continue
        shape = shape_of(graph, name)
        step = affine(graph, node, name, 1, shape)
        if step is not None:
            nodes, total = chain_behind(graph, node.outputs[0], 1, shape, step)
            return _made(graph, [node, *nodes], name, total)
    return None


def _made(graph: Graph, chain: list[Node], x: str, total: Affine) -> Rewrite | None:
    """Make the Add, unless the shift is 0, and the Mul, unless the scale is 1 and there is a shift."""
    shifted = bool(total.shift.any())
    scaled = bool((total.scale != 1).any()) or not shifted
    normal = any(node.op == "BatchNormalization" for node in chain)
    if not total.fits or not (normal or len(chain) > scaled + shifted):
        return None
    maker = Maker(graph, *chain)
    scale, shift = (_along_channels(graph, x, vector) for vector in total)
    if scaled:
        x = maker.node("Mul", x, maker.constant(scale, "scale"), part="scaled" if shifted else "")
    if shifted:
        maker.node("Add", x, maker.constant(shift, "shift"))
    return maker.done()


def _along_channels(graph: Graph, x: str, vector: np.ndarray) -> np.ndarray:
    """Reshape a per-channel vector to broadcast over x, in the type of x; equal numbers become a scalar."""
    vector = vector.astype(graph.value(x).dtype)
    same = vector.size and (vector == vector[0]).all()
    return vector[:1].reshape(()) if same else vector.reshape(-1, *[1] * (len(shape_of(graph, x)) - 2))


run = Pass("affine", __doc__, (dict.fromkeys(OPERATORS, _rule),), needs=("weights", "hard_sigmoids"))
