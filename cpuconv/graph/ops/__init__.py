"""Operator table: one family per file, and one row per operator in the family's table `OPS`."""

from __future__ import annotations

from types import ModuleType

from cpuconv.graph.ir import Meaning, Node
from cpuconv.graph.ops import (
    activation,
    arithmetic,
    convolution,
    detection,
    drawing,
    elementwise,
    indexing,
    joining,
    lookup,
    matrix,
    moving,
    normalization,
    plain,
    pooling,
    quantised,
    quantised_recurrent,
    recurrent,
    reduction,
    resizing,
    sampling,
    shaping,
)
from cpuconv.graph.ops.base import Op

FAMILIES: tuple[ModuleType, ...] = (
    convolution,
    pooling,
    normalization,
    activation,
    arithmetic,
    elementwise,
    lookup,
    matrix,
    reduction,
    joining,
    moving,
    shaping,
    indexing,
    resizing,
    sampling,
    recurrent,
    detection,
    drawing,
    plain,
    quantised,
    quantised_recurrent,
)
TABLE: dict[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}
OWN = frozenset(name for name, op in TABLE.items() if op.own)
"""Operators that ONNX does not define; rewrites and layout planning make them."""


def meaning(node: Node) -> Meaning:
    """Semantics of a node: its own if it has one, else those of the operator table."""
    return node.meaning or TABLE[node.op]
