"""Operators without kernels become several that have some.

GroupNormalization is an InstanceNormalization of groups as channels, then a scale and a bias over channels: the same
arithmetic in one order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten, shape_of


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
    "GroupNormalization": _group_normalization,
}


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    decompose = DECOMPOSED.get(node.op) if node.meaning is None else None
    return decompose(graph, node) if decompose else None


def run(graph: Graph) -> Graph:
    """Take them all apart."""
    return rewritten(graph, _rule)
