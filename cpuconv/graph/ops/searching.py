"""Search along an axis: extremes, the first k elements, cumulative sums, and the places of elements that are not zero.

Source: ONNX operators of these names. Kernels compute those of all numeric types.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, Arrays, Inputs, Op, axis_in, integers, known, like_first
from cpuconv.kernels.axis.lines import full
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE
from cpuconv.kernels.search import non_zero as search
from cpuconv.kernels.search import top_k
from cpuconv.kernels.search.cumulative import DTYPES, cumulative_steps
from cpuconv.kernels.search.extremes import extremes_steps
from cpuconv.kernels.search.order import DTYPES as NUMBERS
from cpuconv.kernels.search.order import Order

_INT64 = np.dtype(np.int64)
_ARG = {"axis": 0, "keepdims": 1, "select_last_index": 0}


def _infer_arg(node: Node, inputs: Inputs) -> list[Value]:
    shape = list(inputs[0].shape)
    axis = axis_in(node["axis"], len(shape))
    if not shape[axis] and 0 not in (*shape[:axis], *shape[axis + 1 :]):
        raise ValueError(f"the axis {axis} has no elements")
    shape[axis : axis + 1] = [1] if node["keepdims"] else []
    return [Value(tuple(shape), _INT64)]


def _arg(function: Callable[..., np.ndarray]) -> Callable[[Node, Arrays], np.ndarray]:
    """Make a reference for the index of the first (or last) extreme along an axis."""

    def reference(node: Node, arrays: Arrays) -> np.ndarray:
        (x,), axis = arrays, node["axis"]
        if not x.size:
            return x.sum(axis, np.int64, keepdims=bool(node["keepdims"]))  # empty, in the right shape
        if node["select_last_index"]:
            return x.shape[axis] - 1 - function(np.flip(x, axis), axis, keepdims=bool(node["keepdims"]))
        return function(x, axis, keepdims=bool(node["keepdims"]))

    return reference


def _lower_arg(call: Call) -> list[Step]:
    x, node = call.x, call.node
    axis = axis_in(node["axis"], len(x.shape))
    order = Order(x.dtype.name, node.op == "ArgMax", nan_first=True)
    results = None, full(call.y, x.shape, [axis])
    return extremes_steps(call.target, call.space, x, results, axis, order, final=bool(node["select_last_index"]))


def _infer_top_k(node: Node, inputs: Inputs) -> list[Value]:
    shape, (k,) = list(inputs[0].shape), integers(inputs[1].array)
    axis = axis_in(node["axis"], len(shape))
    if not 0 <= k <= shape[axis]:
        raise ValueError(f"there are no {k} largest of {shape[axis]}")
    shape[axis] = k
    return [Value(tuple(shape), inputs[0].dtype), Value(tuple(shape), _INT64)]


def first_k(node: Node, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The k largest (or smallest) elements along an axis, sorted, ties by index; and their indices."""
    x, (k,), axis = arrays[0], integers(arrays[1]), axis_in(node["axis"], arrays[0].ndim)
    places = np.take(_sorted(x, axis, bool(node["largest"])), np.arange(k), axis)
    return np.take_along_axis(x, places, axis), places


def _sorted(x: np.ndarray, axis: int, largest: bool) -> np.ndarray:
    """Indices that sort along an axis; equal elements keep their order, and NaN is the largest."""
    if not largest:
        return np.argsort(x, axis, kind="stable")
    # reversed, so that the first of equal elements stays first after flipping
    return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer of an extreme, or of the first k elements, along an axis."""
    x, (result, *more) = inputs[0], (_infer_top_k if node.op == "TopK" else _infer_arg)(node, inputs)
    if x.dtype.name not in NUMBERS or 0 in x.shape + result.shape or not x.shape:
        return []
    axis = axis_in(node["axis"], len(x.shape))
    found: Any = result.shape
    seconds = top_k.seconds(target, x.shape, axis, found[axis] if more else 1)
    return [Offer((DENSE, "")[: len(inputs)], (DENSE,) * len(node.outputs), seconds)]


def _lower_top_k(call: Call) -> list[Step]:
    results = iter(call.outputs)
    given = [next(results) if name else None for name in (*call.node.outputs, "")[:2]]
    return top_k.top_k_steps(call.target, call.space, call.x, given, call.node["axis"], bool(call.node["largest"]))


def cum_sum(node: Node, arrays: Arrays) -> np.ndarray:
    """Cumulative sums along an axis, optionally exclusive or from the end."""
    x, (axis,) = arrays[0], integers(arrays[1])
    x = np.flip(x, axis) if node["reverse"] else x
    sums = np.cumsum(x, axis, dtype=x.dtype)
    if node["exclusive"]:  # shift by one, as infinity minus infinity is NaN
        sums, inclusive = np.zeros_like(sums), sums
        np.moveaxis(sums, axis, 0)[1:] = np.moveaxis(inclusive, axis, 0)[:-1]
    return np.flip(sums, axis) if node["reverse"] else sums


def _offers_sum(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    x, axis = inputs
    if axis.array is None or x.dtype.name not in DTYPES or 0 in x.shape:
        return []
    return [Offer((DENSE, ""), (DENSE,), target.moving(2 * x.nbytes))]


def _lower_sum(call: Call) -> list[Step]:
    x, axes, node = call.x, known(call.inputs, 1), call.node
    (axis,) = (axis_in(each, len(x.shape)) for each in integers(axes))
    return cumulative_steps(call.target, call.space, x, call.y, axis, bool(node["exclusive"]), bool(node["reverse"]))


def non_zero(node: Node, arrays: Arrays) -> np.ndarray:
    """Indices of all non-zero elements, one row per axis."""
    return np.array(np.nonzero(np.atleast_1d(arrays[0])))[: arrays[0].ndim]


def bounded(node: Node, *shape: int) -> list[Value]:
    """Indices of an upper bound of their shape, and their number."""
    if len(node.outputs) != 2 or not all(node.outputs):
        raise ValueError("there must be two outputs")
    return [Value(shape, _INT64), Value((1,), _INT64)]


def _infer_bounded(node: Node, inputs: Inputs) -> list[Value]:
    return bounded(node, len(inputs[0].shape), math.prod(inputs[0].shape))


def bounded_non_zero(node: Node, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The columns of `non_zero`, followed by columns of -1, and their number."""
    found, columns = non_zero(node, arrays), np.full((arrays[0].ndim, arrays[0].size), -1)
    columns[:, : found.shape[1]] = found
    return columns, np.array([found.shape[1]])


def _offers_non_zero(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    x = inputs[0]
    if 0 in x.shape or not search.finds(x.dtype, len(x.shape)):
        return []
    return [Offer((DENSE,), (DENSE, DENSE), search.seconds(target, math.prod(x.shape)))]


_KERNELS: dict[str, Any] = {"offers": _offers, "lower": _lower_arg, "signature": "x: any -> indices: any"}
_SUMS: dict[str, Any] = {"offers": _offers_sum, "lower": _lower_sum, "signature": "x: any, axis: known -> y: =x"}
_NON_ZERO: dict[str, Any] = {"offers": _offers_non_zero, "own": True}
_NON_ZERO["lower"] = lambda call: search.non_zero_steps(call.target, call.space, call.x, *call.outputs)
_NON_ZERO["signature"] = "x: any -> indices: any (R N), count: any (1)"
_TOP_K: dict[str, Any] = {"offers": _offers, "lower": _lower_top_k}
_TOP_K["signature"] = "x: any, k: known -> values?: =x, indices?: any"
OPS = (
    Op("ArgMax", _infer_arg, _arg(np.argmax), _ARG, widened=False, **_KERNELS),
    Op("ArgMin", _infer_arg, _arg(np.argmin), _ARG, widened=False, **_KERNELS),
    Op(
        "TopK", _infer_top_k, first_k, {"axis": -1, "largest": 1, "sorted": 1}, parameters=(1,), widened=False, **_TOP_K
    ),
    Op("NonZero", lambda node, inputs: [Value((len(inputs[0].shape), None), _INT64)], non_zero, widened=False),
    Op("BoundedNonZero", _infer_bounded, bounded_non_zero, **EXACT, **_NON_ZERO),
    Op("CumSum", like_first, cum_sum, {"exclusive": 0, "reverse": 0}, mixed=True, **_SUMS),
)
