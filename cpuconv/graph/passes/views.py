"""Merge chains of data movement, and remove Reshape around row-wise operators.

Patterns: Reshape of Reshape; Transpose of Transpose; Concat of a Concat along the same axis without other readers;
empty operands of a Concat; Reshape, an operator on the last axis alone (`Op.rowwise`) and Reshape, where the last axis
stays and the other axes are restored. Nodes that then change nothing are removed. Equal in every bit: the same elements
in the same order, or the same rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.shaping import axis_order
from cpuconv.graph.passes import noops
from cpuconv.graph.passes.pattern import Formula, Found, Symbol, operator
from cpuconv.graph.passes.rewriting import (
    Maker,
    Pass,
    Rewrite,
    Rule,
    either,
    instead,
    operand,
    reshaped,
    shape_of,
    sole_reader,
)


def _inner(graph: Graph, node: Node) -> Node | None:
    """Producer of the first input, if it has the same operator."""
    producer = graph.producer(node.inputs[0])
    return producer if producer is not None and producer.op == node.op else None


def _reshape(graph: Graph, node: Node) -> Rewrite | None:
    inner = _inner(graph, node)
    return _around_rows(graph, node) if inner is None else reshaped(graph, node, inner.inputs[0])


def _around_rows(graph: Graph, node: Node) -> Rewrite | None:
    middle = graph.producer(node.inputs[0])
    if (
        middle is None
        or not traits_of(middle).rowwise
        or operand(middle, 3)
        or sole_reader(graph, middle.outputs[0]) is None
    ):
        return None
    first = graph.producer(middle.inputs[0])
    if first is None or first.op != "Reshape" or any(middle.outputs[1:]):
        return None
    source, rows = shape_of(graph, first.inputs[0]), shape_of(graph, middle.inputs[0])
    result, end = shape_of(graph, middle.outputs[0]), shape_of(graph, node.outputs[0])
    last = middle.attributes.get("axis", -1) in (-1, len(rows) - 1)
    if not source or not end or not last or source[-1] != rows[-1] or end != (*source[:-1], result[-1]):
        return None
    attributes = {**middle.attributes, "axis": -1} if "axis" in middle.attributes else middle.attributes
    made = replace(middle, inputs=(first.inputs[0], *middle.inputs[1:]), outputs=node.outputs, attributes=attributes)
    return Rewrite([middle, node], [made])


def _transpose(graph: Graph, node: Node) -> Rewrite | None:
    inner = _inner(graph, node)
    if inner is None:
        return None
    outer, first = (axis_order(each, len(shape_of(graph, node.inputs[0]))) for each in (node, inner))
    return instead(graph, node, "Transpose", inner.inputs[0], perm=[first[axis] for axis in outer])


def _concat(graph: Graph, node: Node) -> Rewrite | None:
    rank = len(shape_of(graph, node.outputs[0]))
    kept = tuple(name for name in node.inputs if 0 not in shape_of(graph, name))
    if 0 < len(kept) < len(node.inputs):
        return Rewrite([node], [replace(node, inputs=kept)])
    for at, name in enumerate(node.inputs):
        inner = graph.producer(name)
        if inner is None or inner.op != "Concat" or sole_reader(graph, name) is None or node.inputs.count(name) > 1:
            continue
        if inner["axis"] % rank == node["axis"] % rank:
            inputs = (*node.inputs[:at], *inner.inputs, *node.inputs[at + 1 :])
            return Rewrite([inner, node], [replace(node, inputs=inputs)])
    return None


_RULES: dict[str, Rule] = {"Reshape": _reshape, "Transpose": _transpose, "Concat": _concat}
run = Pass(
    "views",
    __doc__,
    (either(_RULES, noops.RULES),),
    needs=("decomposed", "forms", "integers", "linear"),
    includes=("noops",),
)


# --- shuffles -------------------------------------------------------------------------------------------------------

_Reshape, _Transpose = operator("Reshape"), operator("Transpose")


def _pick(maker: Maker, found: Found) -> bool:
    graph, (last, turn, first), x = maker.graph, found.nodes, found.names["x"]
    shape, split = shape_of(graph, x), shape_of(graph, first.outputs[0])
    same = shape == shape_of(graph, last.outputs[0]) and turn["perm"] is not None
    channels = _order(shape, split, list(turn["perm"])) if same else None
    if channels is not None:
        maker.node("Gather", x, maker.constant(channels, "channels"), axis=1)
    return channels is not None


def _order(shape: tuple[int, ...], split: tuple[int, ...], axes: list[int]) -> np.ndarray | None:
    """New order of the channels if a Transpose of the split tensor permutes only their parts; else None."""
    behind = len(split) - len(shape) + 2  # first axis after the parts of the channels
    if len(shape) < 3 or behind < 3 or 0 in shape or (*split[:1], *split[behind:]) != (*shape[:1], *shape[2:]):
        return None
    if [*axes[:1], *axes[behind:]] != [0, *range(behind, len(split))]:
        return None
    parts = np.arange(shape[1], dtype=np.int64).reshape(split[1:behind])
    return parts.transpose([axis - 1 for axis in axes[1:behind]]).reshape(-1)


shuffles = Pass(
    "shuffles",
    """Channel shuffles become one Gather of channels.

    Pattern: Reshape, which splits the channels; Transpose, which moves only these parts; Reshape to the first shape.
    Equal in every bit: Gather takes the same channels in the same order, in one copy for any layout of the tensors.
    """,
    (Formula(_Reshape(_Transpose(_Reshape(Symbol("x"), Symbol("split"))), Symbol("end")), _pick, alone=False),),
    needs=("transposed", "views"),
)
