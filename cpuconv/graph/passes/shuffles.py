"""Channel shuffles become one pick of channels in another order.

Pattern: Reshape, which splits the channels; Transpose, which moves only these parts; Reshape to the first shape. Equal
in every bit: Gather takes the same channels in the same order, in one copy whichever way tensors lie.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.pattern import Symbol, found_at, operator
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten, shape_of

_Reshape, _Transpose = operator("Reshape"), operator("Transpose")
_PATTERN = _Reshape(_Transpose(_Reshape(Symbol("x"), Symbol("split"))), Symbol("end"))


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    found = found_at(graph, node, _PATTERN, alone=False)
    if found is None or (perm := found.nodes[1]["perm"]) is None:
        return None
    x = found.names["x"]
    shape, split = shape_of(graph, x), shape_of(graph, found.nodes[2].outputs[0])
    channels = _order(shape, split, list(perm)) if shape == shape_of(graph, node.outputs[0]) else None
    if channels is None:
        return None
    maker = Maker(graph, node)
    maker.node("Gather", x, maker.constant(channels, "channels"), axis=1)
    return maker.done()


def _order(shape: tuple[int, ...], split: tuple[int, ...], axes: list[int]) -> np.ndarray | None:
    """The channels in their new order, where the axes of a split tensor are turned; None if others move, too."""
    behind = len(split) - len(shape) + 2  # the first axis behind the parts of the channels
    if len(shape) < 3 or behind < 3 or 0 in shape or (*split[:1], *split[behind:]) != (*shape[:1], *shape[2:]):
        return None
    if [*axes[:1], *axes[behind:]] != [0, *range(behind, len(split))]:
        return None
    parts = np.arange(shape[1], dtype=np.int64).reshape(split[1:behind])
    return parts.transpose([axis - 1 for axis in axes[1:behind]]).reshape(-1)


def run(graph: Graph) -> Graph:
    """Make them picks, wherever they are."""
    return rewritten(graph, _rule)
