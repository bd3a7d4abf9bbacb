"""Products of whole numbers whose results become floats are computed as floats.

Patterns: Cast(P) and Cast(P + b), to float32, where P is ConvInteger(x, W, zero, ...) or MatMulInteger with constant W
and one zero point for x. Conv(Cast(x) - Cast(zero), W - its zero point) + Cast(b) is equal up to the rounding of sums
that float32 cannot hold.

Bytes that DynamicQuantizeLinear makes of floats f are not made: Cast(x) - Cast(zero) is
Clip(Round(f / scale) + zero, 0, 255) - zero, equal in every bit.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Rewrite, constant, operand, rewritten, sole_reader
from cpuconv.kernels.binding.place import FLOAT32

_PRODUCTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    if node.op != "Cast" or node["to"] != FLOAT32:
        return None
    inner, added = graph.producer(node.inputs[0]), ""
    old = [node]
    if inner is not None and inner.op == "Add":
        old.insert(0, inner)
        producers = [graph.producer(name) for name in inner.inputs]
        at = next((at for at, one in enumerate(producers) if one is not None and one.op in _PRODUCTS), None)
        if at is None:
            return None
        added, inner = inner.inputs[1 - at], producers[at]
    if inner is None or inner.op not in _PRODUCTS:
        return None
    old.insert(0, inner)
    if any(sole_reader(graph, one.outputs[0]) is None for one in old[:-1]):
        return None
    return _made(graph, inner, added, old)


def _made(graph: Graph, product: Node, added: str, old: list[Node]) -> Rewrite | None:
    """The product in floats, and what is added."""
    x, zero = product.inputs[0], operand(product, 2)
    w, w_zero = constant(graph, product.inputs[1]), constant(graph, operand(product, 3))
    if w is None or (operand(product, 3) and w_zero is None):
        return None
    if zero and int(np.prod(graph.value(zero).shape, dtype=np.int64)) != 1:  # type: ignore[arg-type]
        return None
    maker = Maker(graph, *old)
    shift = 0 if w_zero is None else w_zero.astype(np.float32)
    if product.op == "ConvInteger" and w_zero is not None and w_zero.size > 1:
        shift = w_zero.astype(np.float32).reshape(-1, *[1] * (w.ndim - 1))
    weight = maker.constant(np.asarray(w.astype(np.float32) - shift, np.float32), "weight")
    attributes = {**product.attributes, "activation": None} if product.op == "ConvInteger" else {}
    y = maker.node(
        _PRODUCTS[product.op], _floats(graph, maker, x, zero), weight, part="product" if added else "", **attributes
    )
    if added:
        maker.node("Add", y, maker.node("Cast", added, part="added", to=FLOAT32))
    return maker.done()


def _floats(graph: Graph, maker: Maker, x: str, zero: str) -> str:
    """x less its zero point, as floats."""
    producer = graph.producer(x)
    number = maker.node("Cast", zero, part="zero", to=FLOAT32) if zero else ""
    if producer is None or producer.op != "DynamicQuantizeLinear" or zero != producer.outputs[2]:
        wide = maker.node("Cast", x, part="wide", to=FLOAT32)
        return maker.node("Sub", wide, number, part="shifted") if zero else wide
    ends = [maker.constant(np.array(end, np.float32), f"end{end}") for end in (0, 255)]
    rounded = maker.node("Round", maker.node("Div", producer.inputs[0], producer.outputs[1], part="q"), part="rounded")
    moved = maker.node("Clip", maker.node("Add", rounded, number, part="moved"), *ends, part="clipped")
    return maker.node("Sub", moved, number, part="shifted")


def run(graph: Graph) -> Graph:
    """Rewrite them all."""
    return rewritten(graph, _rule)
