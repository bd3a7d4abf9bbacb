"""Operators without kernels become several that have some.

DepthToSpace and SpaceToDepth are Reshape, Transpose and Reshape: equal in every bit. GroupNormalization is an
InstanceNormalization of groups as channels, then a scale and a bias over channels: the same arithmetic in one order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten, shape_of


def _to_space(graph: Graph, node: Node) -> Rewrite:
    (n, c, h, w), b = shape_of(graph, node.inputs[0]), node["blocksize"]
    apart = node["mode"] == "DCR"
    split = (n, b, b, c // (b * b), h, w) if apart else (n, c // (b * b), b, b, h, w)
    return _shuffled(graph, node, split, (0, 3, 4, 1, 5, 2) if apart else (0, 1, 4, 2, 5, 3))


def _to_depth(graph: Graph, node: Node) -> Rewrite:
    (n, c, h, w), b = shape_of(graph, node.inputs[0]), node["blocksize"]
    order = (0, 3, 5, 1, 2, 4) if node["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return _shuffled(graph, node, (n, c, h // b, b, w // b, b), order)


def _shuffled(graph: Graph, node: Node, split: tuple[int, ...], order: tuple[int, ...]) -> Rewrite:
    maker = Maker(graph, node)
    blocks = maker.reshape(node.inputs[0], split, "split")
    moved = maker.node("Transpose", blocks, part="moved", perm=list(order))
    maker.reshape(moved, shape_of(graph, node.outputs[0]))
    return maker.done()


def _group_normalization(graph: Graph, node: Node) -> Rewrite:
    x, *vectors = node.inputs
    shape, dtype = shape_of(graph, x), graph.value(x).dtype
    groups, channels, rank = node["num_groups"], shape[1], len(shape)
    maker = Maker(graph, node)
    grouped = maker.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups), "grouped")
    one, zero = (maker.constant(np.full(groups, number, dtype), part) for number, part in ((1, "one"), (0, "zero")))
    normal = maker.node("InstanceNormalization", grouped, one, zero, part="normal", epsilon=node["epsilon"])
    back = maker.reshape(normal, shape, "back")
    along = [maker.reshape(vector, (channels, *[1] * (rank - 2)), f"vector{at}") for at, vector in enumerate(vectors)]
    scaled = maker.node("Mul", back, along[0], part="scaled")
    maker.node("Add", scaled, along[1])
    return maker.done()


DECOMPOSED: dict[str, Callable[[Graph, Node], Rewrite]] = {
    "DepthToSpace": _to_space,
    "SpaceToDepth": _to_depth,
    "GroupNormalization": _group_normalization,
}


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    decompose = DECOMPOSED.get(node.op) if node.meaning is None else None
    return decompose(graph, node) if decompose else None


def run(graph: Graph) -> Graph:
    """Take them all apart."""
    return rewritten(graph, _rule)
