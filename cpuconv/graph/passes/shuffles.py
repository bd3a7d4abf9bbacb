"""Channel shuffles become one pick of channels in another order.

Pattern: Reshape, which splits the channels; Transpose, which moves only these parts; Reshape to the first shape. Equal
in every bit: Gather takes the same channels in the same order, in one copy whichever way tensors lie.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten, shape_of


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    turned = graph.producer(node.inputs[0]) if node.op == "Reshape" else None
    first = graph.producer(turned.inputs[0]) if turned is not None and turned.op == "Transpose" else None
    if turned is None or first is None or first.op != "Reshape" or turned["perm"] is None:
        return None
    x = first.inputs[0]
    shape, split = shape_of(graph, x), shape_of(graph, first.outputs[0])
    channels = _order(shape, split, list(turned["perm"])) if shape == shape_of(graph, node.outputs[0]) else None
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
