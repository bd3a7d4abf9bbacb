"""Elementwise operators: their offers and kernel calls, derived from the table of forms (`elementwise_forms.py`)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import layouts
from cpuconv.conv.choice.target import Target
from cpuconv.elements import F32, OF_DTYPE, S8, S32, U8
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import FLOATS, REQUIRED, Arrays, Inputs, Op, broadcast, given
from cpuconv.graph.ops.elementwise_forms import COMPARISONS, FORMS
from cpuconv.graph.ops.planes import stored
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import (
    BLOCKED,
    CHANNELS_LAST,
    DENSE,
    FLOAT32,
    NARROW,
    STRIDED,
    TensorView,
    blocked_shape,
    image_shape,
    narrow_element,
)
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.elementwise.driver import MAX_OPERANDS, elementwise_steps
from cpuconv.kernels.elementwise.expression import Constant, Expression, Operand
from cpuconv.kernels.elementwise.halves import computes_in_halves
from cpuconv.kernels.elementwise.loop_nests import crossed
from cpuconv.problem.quantization import bounds

_INT8_DTYPES, BOOL = (U8.dtype, S8.dtype), np.dtype(bool)

_SCALE_AND_ZERO = "scale: number, zero?: number"
_TWO = "a: float32|number ~(S...), b: float32|number ~(S...) -> y: float32 (S...)"
_MANY = "x*: float32|number ~(S...) -> y: float32 (S...)"
SIGNATURES = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "PRelu"), _TWO),
    **dict.fromkeys(("Min", "Max", "Sum", "Mean"), _MANY),
    **dict.fromkeys(COMPARISONS, _TWO.replace("y: float32", "y: bool")),
    "Clip": "x: float32 (S...), low?: float32|number, high?: float32|number -> y: float32 (S...)",
    "Elementwise": "x*: bool|uint8|int8|int32|float32|number ~(S...) -> y: uint8|int8|float32 (S...)",
    "Where": f"condition: bool|number ~(S...), {_TWO}",
    "QuantizeLinear": f"x: float32 (S...), {_SCALE_AND_ZERO} -> y: uint8|int8 (S...)",
    "DequantizeLinear": f"x: uint8|int8|int32 (S...), {_SCALE_AND_ZERO} -> y: float32 (S...)",
}
"""Signatures of operators that are not functions of one float32 tensor."""


def expression_of(node: Node, inputs: Inputs) -> Expression | None:
    """Convert a node to an expression of its inputs by position; known single numbers become constants.

    None if it is not in `FORMS`, reads or writes types that kernels do not support, or reads no operand or too many.
    """
    if node.op not in FORMS or len(inputs) > MAX_OPERANDS:
        return None
    tree = _formed(node, _operands(inputs))
    if tree is None or not 0 < len(tree.operands) <= MAX_OPERANDS:
        return None
    first = int(node.op == "Where")  # position of the input whose type the output has
    types = {inputs[position].dtype for position in (first, *tree.operands) if position >= first}
    if node.op == "QuantizeLinear":
        types |= {inputs[1].dtype, node["precision"] or FLOAT32}  # type of the quotient
        return tree if types == {FLOAT32} and _type_of(node, inputs) in _INT8_DTYPES else None
    if node.op in ("DequantizeLinear", "Elementwise", "Where"):
        supported = types <= {FLOAT32, BOOL, S32.dtype, *_INT8_DTYPES}
        return tree if supported and _type_of(node, inputs) in (FLOAT32, *_INT8_DTYPES) else None
    return tree if types == {FLOAT32} else None


_Operands = tuple[Expression | None, ...]


@functools.lru_cache(maxsize=1024)
def _formed(node: Node, operands: _Operands) -> Expression | None:
    """Convert a node to an expression, which is the same for all sizes."""
    return FORMS[node.op](node, *operands)


@functools.lru_cache(maxsize=1024)
def _compact(node: Node, operands: _Operands) -> tuple[tuple[int, ...], Expression]:
    """Positions of the operands that a node's expression reads, and the expression with renumbered operands."""
    tree = _formed(node, operands)
    assert tree is not None
    read = tuple(tree.operands)
    return read, tree.substituted({position: Operand(at) for at, position in enumerate(read)})


def _operands(inputs: Inputs) -> _Operands:
    return tuple(map(_operand, range(len(inputs)), inputs))


def quantised_type(node: Node, zero: Any) -> np.dtype:
    """Output type of a QuantizeLinear: that of its zero point, or the node's attribute."""
    return zero.dtype if zero is not None else node["output_dtype"] or U8.dtype


def _type_of(node: Node, inputs: Inputs) -> np.dtype:
    """Type of a node's output."""
    if node.op == "QuantizeLinear":
        return quantised_type(node, given(inputs, 2))
    if node.op == "DequantizeLinear":
        return node["output_dtype"] or inputs[1].dtype
    return BOOL if node.op in COMPARISONS else node.attributes.get("to") or inputs[node.op == "Where"].dtype


def _operand(position: int, value: Value | None) -> Expression | None:
    if value is None or value.array is None or value.array.size != 1:
        return None if value is None else Operand(position)
    number = float(value.array.reshape(()))
    return Operand(position) if math.isnan(number) else Constant(number)


# --- offers ---------------------------------------------------------------------------------------------------------


def _all_channels(value: Any, shape: Sequence[int]) -> bool:
    """Whether an operand of an output (N, C, …) varies over channels."""
    rank, own = len(shape), len(value.shape)
    return own == rank and (shape[1] == 1 or value.shape[1] > 1) or own == rank - 1 and value.shape[0] > 1


def _form_with_blocks(value: Any, shape: Sequence[int]) -> str | None:
    """Form that an operand needs next to others in channel blocks, "": packed at compilation; None if there is none."""
    if not _all_channels(value, shape):
        return STRIDED
    if len(value.shape) == len(shape):
        return BLOCKED
    return "" if value.array is not None else None


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    tree = expression_of(node, inputs)
    if tree is None:
        return []
    shape: Any = broadcast(node, inputs)[0].shape
    result = _type_of(node, inputs)
    if 0 in shape:
        return []
    read = {position: inputs[position] for position in tree.operands}
    rounds = result == FLOAT32 and {value.dtype for value in read.values()} <= {FLOAT32, BOOL}
    image = len(shape) in (3, 4) and BOOL not in {result, *(value.dtype for value in inputs if value)}
    orders = (DENSE, CHANNELS_LAST) if image and target.channels_last else (DENSE,)
    kinds = target.forms(STRIDED) if rounds else (STRIDED,)
    free = [at for at, value in read.items() if value.array is None and value.dtype != BOOL]
    alike = ([each] * len(free) for each in kinds)  # of two operands, one may be bfloat16 and the other float32
    mixed = alike if len(free) > 2 else itertools.product(kinds, repeat=len(free))
    typed = [dict(zip(free, each, strict=True)) for each in mixed]
    ways: list[tuple[dict[int, str | None], str, Any]] = [
        ({at: _plain_form(v, shape, plain, forms.get(at, STRIDED)) for at, v in read.items()}, output, shape)
        for plain, forms in itertools.product(orders, typed)
        for output in (target.forms(plain) if rounds else (plain,))
    ]
    if image:
        forms_with_blocks = {position: _form_with_blocks(value, shape) for position, value in read.items()}
        if BLOCKED in forms_with_blocks.values() and None not in forms_with_blocks.values():
            blocks = target.blocks() if rounds else (BLOCKED,)
            for form in blocks:
                forms = {at: form if at in free and way == BLOCKED else way for at, way in forms_with_blocks.items()}
                ways += [(forms, output, blocked_shape(shape, target.isa.lanes)) for output in blocks]
    offers = []
    for forms, output, sizes in ways:
        written = math.prod(sizes)
        moved = min(stored(output), result.itemsize) * written
        moved += sum(min(stored(forms[at] or ""), v.dtype.itemsize) * math.prod(v.shape) for at, v in read.items())
        elements = [narrow_element((form or "",)) or F32 for form in (output, *forms.values())]
        halves = computes_in_halves(tree, elements, target.limits.accuracy == "exact")
        seconds = max(target.moving(moved), target.computing(tree.cost * written / (1 + halves)))
        offers.append(Offer(tuple(forms.get(at) or "" for at in range(len(inputs))), (output,), seconds))
    return offers


def _plain_form(value: Value, shape: Sequence[int], plain: str, form: str) -> str:
    """Form in which a plain operand is read instead of `form`: of a full channels-last output, channels last."""
    if value.array is None and plain == CHANNELS_LAST and value.shape == tuple(shape):
        narrow = narrow_element((form,))
        return NARROW[narrow][plain] if narrow else plain
    return form


# --- lowering -------------------------------------------------------------------------------------------------------


def _lower(call: Call) -> list[Step]:
    output = call.y.numbers()
    values = [place and Value(place.shape, place.number, place.array) for place in call.inputs]
    read, tree = _compact(call.node, _operands(values))
    operands, copies = [], []
    for position in read:
        place = _place(call, position, output)
        if crossed(place, output, call.target.isa.lanes):
            there = TensorView.plain(call.space.reserve(place.size), place.shape, place.dtype)
            copies += move_tensor(call.target, call.space, place, there)
            place = there
        operands.append(place)
    return [*copies, *elementwise_steps(call.target, tree, output, operands, call.target.limits.accuracy == "exact")]


def _place(call: Call, position: int, output: TensorView) -> TensorView:
    """View of an operand; a constant of lower rank is packed into the channel blocks of the output."""
    given = call.inputs[position]
    assert given is not None
    place = given.numbers()
    array, shape, block = place.array, (1, *place.shape), call.target.isa.block(place.element)
    if call.offer.inputs[position] or array is None:
        return place

    def pack() -> np.ndarray:
        return np.ascontiguousarray(layouts.from_nchw(array.reshape(image_shape(shape)), layouts.blocked(block)))

    return TensorView.blocked(
        call.constants.packed(call.node.inputs[position], ("blocked", block), pack), shape, block, dtype=place.dtype
    )


def native(*rows: Op) -> tuple[Op, ...]:
    """Add offers and kernel calls to the rows that are in `FORMS`."""
    kernels: dict[str, Any] = {"offers": _offers, "lower": _lower, "in_place": True}
    signatures = {op.name: SIGNATURES.get(op.name, FLOATS) for op in rows if op.name in FORMS}
    return tuple(replace(op, **kernels, signature=signatures[op.name]) if op.name in signatures else op for op in rows)


def _evaluate(node: Node, arrays: Arrays) -> np.ndarray:
    """Evaluate the expression; operands that it does not read still determine the shape."""
    given = {at: array.astype(np.float64) for at, array in enumerate(arrays) if array is not None}
    shape = np.broadcast_shapes(*(array.shape for array in given.values()))
    y = np.broadcast_to(node["expression"].evaluate(given), shape)
    to = node["to"] or arrays[0].dtype
    return y if to.kind == "f" else np.clip(np.rint(y), *bounds(OF_DTYPE[to]))


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(broadcast(node, inputs)[0].shape, _type_of(node, inputs))]


OPS = native(Op("Elementwise", _infer, _evaluate, {"expression": REQUIRED, "to": None}, mixed=True, own=True))
