"""Changes of shape, axis order and type; tensors computed from shapes.

Source: ONNX operators of these names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import BF16, F16
from cpuconv.functions.casting import convert
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import (
    REQUIRED,
    Arrays,
    Infer,
    Inputs,
    Offers,
    Op,
    as_reference,
    axis_in,
    broadcast_shapes,
    integers,
    like_first,
)
from cpuconv.graph.ops.traits import Int8, Movement, Sign
from cpuconv.graph.ops.views import blockable, view_offers
from cpuconv.kernels.binding.steps import Ref, Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, CHANNELS_LAST, DENSE, FLOAT32, STRIDED, TensorView, stored_as
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.tensor_views import broadcast, permuted, reshaped, unpermuted
from cpuconv.kernels.elementwise.converting import converted
from cpuconv.symbolic.sizes import sizes_array

# --- references -----------------------------------------------------------------------------------------------------


def _same_type(rule: Callable[..., Sequence[int]]) -> Infer:
    """Make an inference rule for an output in the first input's type, with sizes from `rule`."""
    return lambda node, inputs: [Value(tuple(rule(node, *inputs)), inputs[0].dtype)]


def _transposed(node: Node, x: Any) -> list[int]:
    return [x.shape[axis] for axis in axis_order(node, len(x.shape))]


def transpose(node: Node, arrays: Arrays) -> np.ndarray:
    """Permute the axes; reverse them by default."""
    return arrays[0].transpose(axis_order(node, arrays[0].ndim))


def _reshaped(node: Node, x: Any, stated: Any) -> list[int]:
    """Stated sizes: -1 is inferred, 0 is the input's size (without allowzero)."""
    sizes = integers(stated.array)
    if not node["allowzero"]:
        sizes = [size or x.shape[axis] for axis, size in enumerate(sizes)]
    elements, left = math.prod(x.shape), [at for at, size in enumerate(sizes) if size < 0]
    others = math.prod(size for at, size in enumerate(sizes) if at not in left)
    if len(left) > 1 or (elements % others if left and others else elements != others or left):
        raise ValueError(f"{elements} elements do not make the shape {sizes}")
    for at in left:
        sizes[at] = elements // others
    return sizes


def _flattened(node: Node, x: Any) -> list[int]:
    """Sizes of a matrix: the axes before `axis`, and the others."""
    axis = node["axis"] if node["axis"] == len(x.shape) else axis_in(node["axis"], max(1, len(x.shape)))
    return [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])]


def _squeezed(node: Node, x: Any, stated: Any = None) -> list[int]:
    """Sizes without axes of size 1: the given ones, or all."""
    rank = len(x.shape)
    ones = [axis for axis, size in enumerate(x.shape) if size == 1] if stated is None else integers(stated.array)
    axes = [axis_in(axis, rank) for axis in ones]
    if len({*axes}) < len(axes) or any(x.shape[axis] != 1 for axis in axes):
        raise ValueError(f"axes {axes} are not each one of size 1")
    return [size for axis, size in enumerate(x.shape) if axis not in axes]


def _unsqueezed(node: Node, x: Any, stated: Any) -> list[int]:
    """Sizes with axes of size 1 at these positions of the output."""
    rank = len(x.shape) + stated.array.size
    stated_axes = integers(stated.array)
    axes = {axis_in(axis, rank) for axis in stated_axes}
    if len(axes) < len(stated_axes):
        raise ValueError(f"axes {stated_axes} are not distinct")
    sizes = iter(x.shape)
    return [1 if axis in axes else next(sizes) for axis in range(rank)]


def identity(node: Node, arrays: Arrays) -> np.ndarray:
    """Return the input."""
    return arrays[0]


def _expanded(node: Node, x: Any, stated: Any) -> tuple[int, ...]:
    return broadcast_shapes(x.shape, integers(stated.array))


def expand(node: Node, arrays: Arrays) -> np.ndarray:
    """Broadcast in both directions with a shape."""
    return np.broadcast_to(arrays[0], _expanded(node, *map(Value.of, arrays)))


def cast(node: Node, arrays: Arrays) -> np.ndarray:
    """Convert elements to another type: the attribute's, or that of the second input."""
    dtype = arrays[1].dtype if node.op == "CastLike" else node["to"]
    return convert(arrays[0], dtype, bool(node["saturate"]), node["round_mode"])


def _infer_cast(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(inputs[0].shape, node["to"])]


def _infer_cast_like(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(inputs[0].shape, inputs[1].dtype)]


# --- tensors from shapes --------------------------------------------------------------------------------------------


def shape(node: Node, arrays: Arrays) -> np.ndarray:
    """Sizes of the axes from `start` to `end`."""
    return np.array(arrays[0].shape[node["start"] : node["end"]], np.int64)


def size(node: Node, arrays: Arrays) -> np.ndarray:
    """Number of elements."""
    return np.array(arrays[0].size, np.int64)


def _infer_shape(node: Node, inputs: Inputs) -> list[Value]:
    return [Value.of(sizes_array(inputs[0].shape[node["start"] : node["end"]]))]


def _infer_size(node: Node, inputs: Inputs) -> list[Value]:
    return [Value.of(sizes_array([math.prod(inputs[0].shape)]).reshape(()))]


def constant_of_shape(node: Node, arrays: Arrays) -> np.ndarray:
    """Make a constant tensor; float32 zero by default."""
    value = np.zeros(1, np.float32) if node["value"] is None else node["value"]
    return np.broadcast_to(value.reshape(()), integers(arrays[0]))


def range_(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute start, start + delta, ... below the limit."""
    start, _, delta = (array.item() for array in arrays)
    return (np.arange(_steps(arrays)) * delta + start).astype(arrays[0].dtype)


def _steps(arrays: Arrays) -> int:
    """Number of steps from start to limit."""
    start, limit, delta = (array.item() for array in arrays)
    return max(0, math.ceil((limit - start) / delta))


def _infer_range(node: Node, inputs: Inputs) -> list[Value]:
    return [Value((_steps([value.array for value in inputs]),), inputs[0].dtype)]


# --- offers and views -----------------------------------------------------------------------------------------------


def _reshapes(rule: Infer) -> Offers:
    """Make offers of views with other sizes, inferred by `rule`."""

    def offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
        x, shape = inputs[0], _sizes(rule(node, inputs)[0])
        kept = [DENSE]
        if _splits_axes(x.shape, shape):
            kept.append(STRIDED)
        if target.channels_last and len(x.shape) in (3, 4) and len(shape) in (3, 4) and x.shape[:2] == shape[:2]:
            kept.append(CHANNELS_LAST)
        ways = [(form, form) for plain in kept for form in target.forms(plain, x.dtype)]
        for form in target.blocks(x.dtype) if blockable(x) else ():
            dtype = stored_as(form, x.dtype)
            place = reshaped(TensorView.blocked(Ref("x"), x.shape, target.block(dtype), None, dtype), shape)
            if place and (place.block > 1 or dtype == x.dtype):
                ways.append((form, form if place.block > 1 else DENSE))
        return view_offers(inputs, ways)

    return offers


def _view_reshaped(node: Node, places: Sequence[Any], values: Sequence[Any]) -> list[TensorView]:
    place = reshaped(places[0], values[0].shape)
    return [] if place is None else [place]


def _offer_same(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    kept = (DENSE, STRIDED, BLOCKED) if blockable(inputs[0]) else (DENSE, STRIDED)
    forms = (form for plain in kept for form in target.forms(plain, inputs[0].dtype))
    return view_offers(inputs, [(form, form) for form in forms])


def _offer_cast(rule: Infer) -> Offers:
    """Make offers for casts to the same type, and between float32 and float16 or bfloat16."""

    def offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
        x, y = inputs[0], rule(node, inputs)[0]
        if y.dtype == x.dtype:
            return _offer_same(node, inputs, target)
        if not (x.dtype in _FLOATS and y.dtype in _FLOATS and FLOAT32 in (x.dtype, y.dtype)) or 0 in x.shape:
            return []
        rest = [""] * (len(inputs) - 1)
        stored = [(DENSE, form) for form in target.forms(DENSE, y.dtype) if stored_as(form, y.dtype) == x.dtype]
        moved = Offer((DENSE, *rest), (DENSE,), target.moving(x.nbytes + y.nbytes))
        return [*view_offers(inputs, stored), moved]  # float32 that is stored in bfloat16 is the bfloat16 tensor

    return offers


def _lower_cast(call: Call) -> list[Step]:
    return converted(call.target, call.space, call.x, call.y)


def _view_same(node: Node, places: Sequence[Any], values: Sequence[Any]) -> list[TensorView]:
    return [places[0]]


def _offer_expand(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    return view_offers(inputs, [(form, form) for form in target.forms(STRIDED, inputs[0].dtype)])


def _view_expanded(node: Node, places: Sequence[Any], values: Sequence[Any]) -> list[TensorView]:
    return [broadcast(places[0], values[0].shape)]


def axis_order(node: Node, rank: int) -> list[int]:
    """Order of the axes, as stated or reversed."""
    order = list(range(rank))[::-1] if node["perm"] is None else list(node["perm"])
    if sorted(order) != list(range(rank)):  # NumPy would read 2**63 - 1 as -1
        raise ValueError(f"'perm' must be the {rank} axes in some order, not {order}")
    return order


def keeps_order(node: Node, shape: Sequence[int]) -> bool:
    """Whether a Transpose of this shape keeps the order of the axes of more than one element."""
    moved = [axis for axis in axis_order(node, len(shape)) if shape[axis] != 1]
    return moved == sorted(moved)


def channels_moved(node: Node, rank: int) -> list[str]:
    """Where a Transpose moves channels: from the second axis to the "last", from the last to the "second", or both."""
    orders = {"last": [0, *range(2, rank), 1], "second": [0, rank - 1, *range(1, rank - 1)]}
    return [place for place, order in orders.items() if rank > 2 and order == axis_order(node, rank)]


_PERMUTE_FACTOR = 3.0  # time of a permuting copy out of blocks relative to a plain copy, measured in networks


def _offer_transpose(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer a view, or a copy out of channel blocks."""
    x = inputs[0]
    ways = [(STRIDED, STRIDED), *([(DENSE, DENSE)] if keeps_order(node, x.shape) else [])]
    if target.channels_last and len(x.shape) in (3, 4):
        turned = {"last": (CHANNELS_LAST, DENSE), "second": (DENSE, CHANNELS_LAST)}
        ways += [turned[place] for place in channels_moved(node, len(x.shape))]
    typed = (zip(*(target.forms(form, x.dtype) for form in way), strict=True) for way in ways)
    offers = view_offers(inputs, itertools.chain(*typed))
    forms = zip(target.blocks(x.dtype), target.forms(DENSE, x.dtype), strict=True) if blockable(x) else ()
    for read, written in forms:
        seconds = _PERMUTE_FACTOR * target.moving(2 * math.prod(x.shape) * stored_as(read, x.dtype).itemsize)
        offers.append(Offer((read,), (written,), seconds))
    return offers


def _view_transposed(node: Node, places: Sequence[Any], values: Sequence[Any]) -> list[TensorView]:
    return [permuted(places[0], axis_order(node, len(places[0].shape)))]


def _lower_transpose(call: Call) -> list[Step]:
    order = axis_order(call.node, len(call.x.shape))
    return move_tensor(call.target, call.space, call.x, unpermuted(call.y, order))


def _splits_axes(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether each axis of a shape becomes one or several adjacent axes, sizes of 1 aside."""
    left = [size for size in reversed(after) if size != 1]
    for size in before:
        product = 1
        while left and product != size:
            product *= left.pop()
        if product != size:
            return False
    return not left


def _sizes(value: Any) -> tuple[int, ...]:
    """Shape of a concrete value."""
    return value.shape


# --------------------------------------------------------------------------------------------------------------------


def _reshaping(
    name: str, sizes: Callable[..., Sequence[int]], attributes: Mapping[str, object] | None = None, **rest: Any
) -> Op:
    """Row of an operator that only changes sizes."""

    def reference(node: Node, arrays: Arrays) -> np.ndarray:
        return arrays[0].reshape(sizes(node, *(None if array is None else Value.of(array) for array in arrays)))

    rule, rest = _same_type(sizes), {"widened": False, "view": _view_reshaped, **_SIZES_ONLY, **rest}
    return Op(name, rule, reference, attributes or {}, offers=_reshapes(rule), **rest)


def _casting(name: str, rule: Infer, attributes: Mapping[str, object], **rest: Any) -> Op:
    """Row of an operator that only changes the type; the same type is a view."""
    kernels: dict[str, Any] = {"offers": _offer_cast(rule), "lower": _lower_cast, "view": _view_same}
    return Op(name, rule, cast, attributes, **rest, widened=False, **kernels, signature=_CASTS)


_FLOATS = (F16.outside, BF16.outside, FLOAT32)

_SIZES_ONLY: dict[str, Any] = {"movement": Movement.IN_ORDER, "int8": Int8.MOVED, "sign": Sign.KEPT}
_EXPANSION: dict[str, Any] = {"offers": _offer_expand, "view": _view_expanded, "int8": Int8.MOVED}
_IDENTITY: dict[str, Any] = {"offers": _offer_same, "view": _view_same, "movement": Movement.IN_ORDER}
_TURNS: dict[str, Any] = {"offers": _offer_transpose, "lower": _lower_transpose, "view": _view_transposed}
_TURNS |= {"signature": "x: any -> y: =x", "movement": Movement.ALL, "int8": Int8.MOVED, "sign": Sign.KEPT}
_HALVES = "float16|bfloat16"
_CASTS = "; ".join(
    f"x: {x} (S...), like?: any -> y: {y} (S...)"
    for x, y in (("any", "=x"), (_HALVES, "float32"), ("float32", f"float32|{_HALVES}"))
)

OPS = (
    Op("Transpose", _same_type(_transposed), transpose, {"perm": None}, widened=False, **_TURNS),
    _reshaping("Reshape", _reshaped, {"allowzero": 0}, parameters=(1,), follows_sizes=True),
    _reshaping("Flatten", _flattened, {"axis": 1}),
    _reshaping("Squeeze", _squeezed, parameters=(1,), follows_sizes=True),
    _reshaping("Unsqueeze", _unsqueezed, parameters=(1,), follows_sizes=True),
    Op("Identity", like_first, identity, widened=False, **_IDENTITY, int8=Int8.MOVED, follows_sizes=True),
    _casting("Cast", _infer_cast, {"to": REQUIRED, "saturate": 1, "round_mode": "up"}),
    _casting("CastLike", _infer_cast_like, {"saturate": 1, "round_mode": "up"}, mixed=True),
    Op("Expand", _same_type(_expanded), expand, parameters=(1,), widened=False, **_EXPANSION),
    Op("Shape", _infer_shape, shape, {"start": 0, "end": None}, widened=False, shape_only=True),
    Op("Size", _infer_size, size, widened=False, shape_only=True),
    Op("ConstantOfShape", as_reference(constant_of_shape), constant_of_shape, {"value": None}, parameters=(0,)),
    Op("Range", _infer_range, range_, {"stash_type": 1}, parameters=(0, 1, 2)),
)
