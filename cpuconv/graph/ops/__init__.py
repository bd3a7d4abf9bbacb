"""Operator table: one family per file, and one row per operator in the family's table `OPS`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from cpuconv.graph.ir import Graph, Node, Semantics
from cpuconv.graph.ops import (
    activation,
    arithmetic,
    attention,
    convolution,
    detection,
    drawing,
    elementwise,
    indexed,
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
    searching,
    shaping,
    unfolding,
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
    attention,
    reduction,
    joining,
    moving,
    shaping,
    unfolding,
    indexed,
    indexing,
    searching,
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


_FOREIGN = Op("", lambda node, inputs: [], lambda node, arrays: ())


def semantics(node: Node) -> Semantics:
    """Semantics of a node: its own if it has one, else those of the operator table."""
    return node.semantics or TABLE[node.op]


def traits_of(node: Node) -> Op:
    """Row of the operator table with the traits of a node; a row without traits if the node has its own semantics."""
    return _FOREIGN if node.semantics is not None else TABLE.get(node.op, _FOREIGN)


def names_of(condition: Callable[[Op], bool]) -> tuple[str, ...]:
    """Names of the operators that satisfy a condition."""
    return tuple(name for name, op in TABLE.items() if condition(op))


def draws(node: Node) -> bool:
    """Whether a node or its bodies draw random numbers, so that it must be computed in every run."""
    if traits_of(node).draws:
        return True
    return any(isinstance(value, Graph) and any(map(draws, value.nodes)) for value in node.attributes.values())
