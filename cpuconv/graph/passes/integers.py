"""Products of whole numbers whose results become floats are computed as floats.

Patterns: Cast(P) and Cast(P + b), to float32, where P is ConvInteger(x, W, zero, ...) or MatMulInteger with constant W
and one zero point for x. Conv(Cast(x) - Cast(zero), W - its zero point) + Cast(b) is equal up to the rounding of sums
that float32 cannot hold.

Bytes that DynamicQuantizeLinear makes of floats f are not made: Cast(x) - Cast(zero) is
Clip(Round(f / scale) + zero, 0, 255) - zero, equal in every bit.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph
from cpuconv.graph.passes.pattern import Either, Formula, Found, Maybe, Search, Symbol, operator
from cpuconv.graph.passes.rewriting import Maker, constant
from cpuconv.kernels.binding.place import FLOAT32

_PRODUCTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
_operands = Symbol("x"), Symbol("w"), Maybe("zero"), Maybe("w_zero")
_product = Either(tuple(operator(op)(*_operands) for op in _PRODUCTS))


def _as_floats(maker: Maker, found: Found) -> bool:
    graph, product, names = maker.graph, found.nodes[-1], found.names
    x, zero, added = names["x"], names["zero"], names.get("added", "")
    w, w_zero = constant(graph, names["w"]), constant(graph, names["w_zero"])
    if w is None or (names["w_zero"] and w_zero is None):
        return False
    if zero and int(np.prod(graph.value(zero).shape, dtype=np.int64)) != 1:  # type: ignore[arg-type]
        return False
    maker.origin = product.origin
    shift = 0 if w_zero is None else w_zero.astype(np.float32)
    if product.op == "ConvInteger" and w_zero is not None and w_zero.size > 1:
        shift = w_zero.astype(np.float32).reshape(-1, *[1] * (w.ndim - 1))
    weight = maker.constant(np.asarray(w.astype(np.float32) - shift, np.float32), "weight")
    attributes = {**product.attributes, "activation": None} if product.op == "ConvInteger" else {}
    floats, part = _floats(graph, maker, x, zero), "product" if added else ""
    y = maker.node(_PRODUCTS[product.op], floats, weight, part=part, **attributes)
    if added:
        maker.node("Add", y, maker.node("Cast", added, part="added", to=FLOAT32))
    return True


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


run = Search(__doc__, (Formula(operator("Cast")(_product | _product + Symbol("added"), to=FLOAT32), _as_floats),))
