"""Convert dynamically quantised matrix multiplications and convolutions, with their scales, to single operators.

Patterns: Cast(P) and Cast(P + b) to float32, where P is ConvInteger(x, W, zero, ...) or MatMulInteger with constant W
and one zero point for x. MatMulInteger becomes QuantizedLinear, ConvInteger QuantizedConv, of x less the middle m of
its type. The result is S + (m - zero) · C + Cast(b), with exact sums S in float32. C is the sum of W per output
channel, over the taps that read x; W is less its zero points.

If W less its zero points exceeds int8, it is taken less the middle of its type. The difference is a multiple of the
sums of x, which one more column computes, or a convolution with ones; grouped convolutions use int16 instead. If the
zero point is known, as for quantised non-negative values, m equals it, and no correction is added. A depthwise
convolution with padding and unknown zero point becomes Conv(Cast(x) - Cast(zero), W - its zero point) + Cast(b): its
few taps take less time than reading C per pixel. Equal up to the rounding of sums that float32 cannot represent.

A float32 convolution of the result of DynamicQuantizeLinear(f) needs no int8: Cast(x) - Cast(zero) is
Clip(Round(f / scale) + zero, 0, 255) - zero, equal in every bit. Otherwise, DynamicQuantizeLinear is decomposed into
Span, which computes scale and zero point, and f / scale + zero, rounded and clamped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from cpuconv.elements import S8, S32, U8
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.convolution import ATTRIBUTES, convolved
from cpuconv.graph.passes.int8_layers import has_solver
from cpuconv.graph.passes.nonnegative import never_negative
from cpuconv.graph.passes.pattern import Either, Formula, Found, Maybe, Symbol, operator
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand, shape_of
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.kernels.elementwise.expression import Constant, Expression, Operand, apply

_MIDDLE = {U8.dtype: 128, S8.dtype: 0}
_PRODUCTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
_operands = Symbol("x"), Symbol("w"), Maybe("zero"), Maybe("w_zero")
_product = Either(tuple(operator(op)(*_operands) for op in _PRODUCTS))


def _convert(maker: Maker, found: Found) -> bool:
    graph, product, names = maker.graph, found.nodes[-1], found.names
    x, zero, added = names["x"], names["zero"], names.get("added", "")
    w, w_zero = constant(graph, names["w"]), constant(graph, names["w_zero"])
    if w is None or (names["w_zero"] and w_zero is None):
        return False
    if zero and int(np.prod(graph.value(zero).shape, dtype=np.int64)) != 1:  # type: ignore[arg-type]
        return False
    maker.origin = product.origin
    whole = _rows if product.op == "MatMulInteger" else _images
    if y := whole(maker, product, w, w_zero, "product" if added else ""):
        if added:
            maker.node("Add", y, _float(maker, added, "added"))
        return True
    shift = 0 if w_zero is None else w_zero.astype(np.float32)
    if product.op == "ConvInteger" and w_zero is not None and w_zero.size > 1:
        shift = w_zero.astype(np.float32).reshape(-1, *[1] * (w.ndim - 1))
    weight = maker.constant(np.asarray(w.astype(np.float32) - shift, np.float32), "weight")
    attributes = {**product.attributes, "activation": None} if product.op == "ConvInteger" else {}
    x_float32, part = _as_float32(graph, maker, x, zero), "product" if added else ""
    y = maker.node(_PRODUCTS[product.op], x_float32, weight, part=part, **attributes)
    if added:
        maker.node("Add", y, _float(maker, added, "added"))
    return True


def _float(maker: Maker, x: str, part: str) -> str:
    """Convert integers to float32."""
    return maker.node("Elementwise", x, part=part, expression=Operand(0), to=FLOAT32)


def _as_int8(w: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 weights, and the remainder to w less its zero points: 0, or the zero points less the middle of the type."""
    whole, middle = w.astype(np.int16) - points, _MIDDLE[w.dtype]
    narrow = whole.astype(np.int8)
    if (narrow == whole).all():
        return narrow, np.zeros_like(points)
    return (w.astype(np.int16) - middle).astype(np.int8), points - middle


def _images(maker: Maker, product: Node, w: np.ndarray, w_zero: np.ndarray | None, part: str) -> str | None:
    """Convert ConvInteger to a float32 result; None if no solver supports it."""
    x, zero = product.inputs[0], operand(product, 2)
    value, points = maker.graph.value(x), np.zeros(1, np.int16) if w_zero is None else w_zero.astype(np.int16)
    if {value.dtype, w.dtype} - {*_MIDDLE}:
        return None
    along = points.reshape(-1, *[1] * (w.ndim - 1))
    whole, (weight, shift) = w.astype(np.int16) - along, _as_int8(w, along)
    if shift.any() and product["group"] > 1:
        weight, shift = whole, np.zeros_like(shift)
    known, columns = _known(maker.graph, zero), _columns(maker.graph, product, whole)
    if known is None and columns.size > len(w) and product["group"] > 1 and w.shape[1] == 1:
        return None
    middle = _MIDDLE[value.dtype] if known is None else known  # type: ignore[index]
    attributes = {each: product[each] for each in ATTRIBUTES} | {"x_zero_point": middle}
    attributes |= {"x_scale": 1.0, "w_scale": 1.0, "y": S32.dtype}
    name = maker.constant(weight, "weight")
    operands, tree = [maker.node("QuantizedConv", x, name, part="sums", **attributes)], cast(Expression, Operand(0))
    if not has_solver(maker):
        del maker.new[-1], maker.constants[name]
        return None
    if known is None:
        operands += [maker.constant(columns, "columns"), zero]
        tree = _moved(middle, zero)
    if shift.any():
        ones = maker.constant(np.ones_like(weight[:1]), "ones")
        operands += [
            maker.node("QuantizedConv", x, ones, part="seen", **attributes),
            maker.constant(shift[:, 0].astype(np.float32), "shift"),
        ]
        tree = apply("sub", tree, apply("mul", *map(Operand, range(len(operands) - 2, len(operands)))))
    return maker.node("Elementwise", *operands, part=part, expression=tree, to=FLOAT32)


def _columns(graph: Graph, product: Node, whole: np.ndarray) -> np.ndarray:
    """Sums of each output channel's weights over the taps that read x; one per channel, or per pixel if they differ."""
    inside = np.ones((1, 1, *shape_of(graph, product.inputs[0])[2:]))  # taps over padding do not contribute
    one_group = replace(product, attributes={**product.attributes, "group": 1})
    sums = convolved(one_group, inside, whole.sum(1, keepdims=True, dtype=np.float64)).astype(np.float32)
    first = sums[:, :, :1, :1] if sums.ndim == 4 else sums[:, :, :1]
    return np.ascontiguousarray(first if (sums == first).all() else sums)


def _known(graph: Graph, zero: str) -> int | None:
    """Zero point of the input, if known at compilation; that of quantised non-negative values is 0."""
    array, producer = constant(graph, zero), graph.producer(zero)
    if array is not None or not zero:
        return int(array.item()) if array is not None else 0
    dynamic = producer is not None and producer.op == "DynamicQuantizeLinear" and zero == producer.outputs[2]
    return 0 if dynamic and producer and never_negative(graph, producer.inputs[0]) else None


def _moved(middle: int, zero: str) -> Expression:
    """Correct sums of inputs less the middle of their type to sums of inputs less their zero point."""
    moved = apply("sub", middle, Operand(2)) if zero else Constant(middle)
    return apply("add", Operand(0), apply("mul", moved, Operand(1)))


def _rows(maker: Maker, product: Node, w: np.ndarray, w_zero: np.ndarray | None, part: str) -> str | None:
    """Convert MatMulInteger with a constant matrix to a float32 result; None if no solver supports it."""
    x, zero = product.inputs[0], operand(product, 2)
    value = maker.graph.value(x)
    if w.ndim != 2 or len(value.shape or ()) < 2 or {value.dtype, w.dtype} - {*_MIDDLE}:
        return None
    points = np.zeros(1, np.int16) if w_zero is None else w_zero.ravel().astype(np.int16)
    (weight, shift), middle = _as_int8(w, points), _MIDDLE[value.dtype]  # type: ignore[index]
    if shift.any():  # an additional column for the sums of rows
        weight = np.pad(weight, ((0, 0), (0, 1)), constant_values=1)
    name = maker.constant(np.ascontiguousarray(weight), "weight")
    numbers = {"x_scale": 1.0, "w_scale": 1.0, "x_zero_point": middle, "y": S32.dtype}
    y = maker.node("QuantizedLinear", x, name, part="sums", **numbers)
    if not has_solver(maker):
        del maker.new[-1], maker.constants[name]
        return None
    tree = _moved(middle, zero)
    operands = [y, maker.constant((w.astype(np.int16) - points).sum(0, dtype=np.float32), "columns"), zero]
    if shift.any():
        first, last, end, axis = (
            maker.constant(np.array([at]), f"at{at}") for at in (0, w.shape[1], w.shape[1] + 1, -1)
        )
        parts = [maker.node("Slice", y, *ends, axis, part="part") for ends in ((first, last), (last, end))]
        tree = apply("sub", tree, apply("mul", Operand(3), Operand(4)))
        operands = [parts[0], *operands[1:], parts[1], maker.constant(shift.astype(np.float32), "shift")]
    return maker.node("Elementwise", *operands, part=part, expression=tree, to=FLOAT32)


def _span(graph: Graph, node: Node) -> Rewrite:
    """Decompose DynamicQuantizeLinear into operators that have kernels."""
    (x,), (y, scale, zero), maker = node.inputs, node.outputs, Maker(graph, node)
    whole = apply("add", apply("round", apply("quotient", Operand(0), Operand(1))), Operand(2))
    maker.new += [
        TABLE["Span"].node([x], [scale, zero], node.origin),
        TABLE["Elementwise"].node((x, scale, zero), [y], node.origin, expression=whole, to=U8.dtype),
    ]
    return maker.done()


def _as_float32(graph: Graph, maker: Maker, x: str, zero: str) -> str:
    """Convert x less its zero point to float32."""
    producer = graph.producer(x)
    number = _float(maker, zero, "zero") if zero else ""
    if producer is None or producer.op != "DynamicQuantizeLinear" or zero != producer.outputs[2]:
        wide = _float(maker, x, "wide")
        return maker.node("Sub", wide, number, part="shifted") if zero else wide
    ends = [maker.constant(np.array(end, np.float32), f"end{end}") for end in (0, 255)]
    rounded = maker.node("Round", maker.node("Div", producer.inputs[0], producer.outputs[1], part="q"), part="rounded")
    moved = maker.node("Clip", maker.node("Add", rounded, number, part="moved"), *ends, part="clipped")
    return maker.node("Sub", moved, number, part="shifted")


_dequantised = Formula(operator("Cast")(_product | _product + Symbol("added"), to=FLOAT32), _convert)
run = Pass("integers", __doc__, (_dequantised, {"DynamicQuantizeLinear": _span}), needs=("pads",))
