"""Operators without kernels become several that have some.

GroupNormalization is an InstanceNormalization of groups as channels, then a scale and a bias over channels: the same
arithmetic in one order.

Einsum of two tensors that sums over an axis of both is a MatMul of them, turned so that axes come in the order (axes of
all three, axes of one, axes summed over): equal up to the order of sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Rewrite, constant, rewritten, shape_of


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


def _einsum(graph: Graph, node: Node) -> Rewrite | None:
    operands, arrow, result = node["equation"].replace(" ", "").partition("->")
    terms = operands.split(",")
    if len(terms) != 2 or not arrow or any(len({*each}) < len(each) or "." in each for each in (*terms, result)):
        return None
    shared = [letter for letter in terms[0] if letter in terms[1]]
    batch, inner = [each for each in shared if each in result], [each for each in shared if each not in result]
    rows, columns = ([letter for letter in term if letter not in shared] for term in terms)
    if not inner or not {*rows, *columns} <= {*result}:
        return None
    shapes = [shape_of(graph, name) for name in node.inputs]
    sizes = dict(zip("".join(terms), itertools.chain(*shapes), strict=True))
    maker = Maker(graph, node)

    def matrices(at: int, *ends: list[str]) -> str:
        """An operand with the axes of `ends` as rows and columns, those of `batch` in front."""
        perm = [terms[at].index(letter) for letter in itertools.chain(batch, *ends)]
        shape = [*(sizes[letter] for letter in batch), *(math.prod(sizes[letter] for letter in end) for end in ends)]
        array, part = constant(graph, node.inputs[at]), ("left", "right")[at]
        if array is not None:
            return maker.constant(np.ascontiguousarray(array.transpose(perm)).reshape(shape), part)
        return maker.reshape(maker.node("Transpose", node.inputs[at], part=f"{part}.turned", perm=perm), shape, part)

    product = maker.node("MatMul", matrices(0, rows, inner), matrices(1, inner, columns), part="product")
    order = [*batch, *rows, *columns]
    apart = maker.reshape(product, [sizes[letter] for letter in order], "apart")
    maker.node("Transpose", apart, perm=[order.index(letter) for letter in result])
    return maker.done()


DECOMPOSED: dict[str, Callable[[Graph, Node], Rewrite | None]] = {
    "Einsum": _einsum,
    "GroupNormalization": _group_normalization,
}


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    decompose = DECOMPOSED.get(node.op) if node.meaning is None else None
    return decompose(graph, node) if decompose else None


def run(graph: Graph) -> Graph:
    """Take them all apart."""
    return rewritten(graph, _rule)
