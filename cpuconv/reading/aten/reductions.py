"""Adapters of reductions, sums along an axis, and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cpuconv.reading.aten.emitter import INT64, Emitter, Operand


def _axes(b: Emitter, x: Operand, axes: Any) -> str | None:
    """Axes of a reduction; None for all."""
    if axes is None or axes == []:
        return None
    return b.integers(*(axis % max(x.rank, 1) for axis in ([axes] if isinstance(axes, int) else axes)))


def reduced(op: str) -> Callable[..., str]:
    """Make an adapter of a reduction over some or all axes, in the dtype of the result."""

    def apply(b: Emitter, x: Any, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
        if isinstance(axes, torch.dtype):  # the form over all axes
            axes = None
        if x.rank == 0:
            return b.cast(x, b.out.dtype)
        return b.add(op, b.cast(x, b.out.dtype), _axes(b, x, axes), keepdims=int(keepdim))

    return apply


def _extreme(op: str, index: str, elementwise: str) -> Callable[..., Any]:
    """Adapter of `max` or `min`: of all elements, along an axis with indices, or of two tensors."""

    def apply(b: Emitter, x: Any, other: Any = None, keepdim: bool = False) -> Any:
        if other is None:
            return b.add(op, x, keepdims=0)
        if not isinstance(other, int):
            return b.add(elementwise, *b.promoted(x, other, dtype=b.out.dtype))
        values = b.add(op, x, b.integers(other), keepdims=int(keepdim))
        return [values, b.add(index, x, axis=other, keepdims=int(keepdim))]

    return apply


def _index_of(op: str) -> Callable[..., str]:
    """Adapter of `argmax` or `argmin`."""

    def apply(b: Emitter, x: Any, axis: int | None, keepdim: bool) -> str:
        if axis is not None:
            return b.add(op, x, axis=axis, keepdims=int(keepdim))
        first = b.add(op, b.add("Reshape", x, b.integers(-1)), axis=0)
        return b.add("Reshape", first, b.integers(*([1] * x.rank if keepdim else [])))

    return apply


def _truth(op: str) -> Callable[..., str]:
    """Adapter of `any` or `all`."""

    def apply(b: Emitter, x: Any, axes: Any = None, keepdim: bool = False) -> str:
        numbers = b.cast(b.cast(x, torch.bool), torch.int32)
        if x.rank:
            numbers = b.add(op, numbers, _axes(b, x, axes), keepdims=int(keepdim))
        return b.add("Cast", numbers, to=np.dtype(np.bool_))

    return apply


def _variance(b: Emitter, x: Any, axes: Any, correction: float, keepdim: bool) -> tuple[str, str]:
    """Variance and mean; the sum of squares is divided by the number of elements less `correction`."""
    named = [*range(x.rank)] if axes in (None, []) else [axes] if isinstance(axes, int) else [*axes]
    over = _axes(b, x, named)
    mean = b.add("ReduceMean", x, over, keepdims=1)
    apart = b.add("Sub", x, mean)
    y = b.add("ReduceMean", b.add("Mul", apart, apart), over, keepdims=int(keepdim))
    if correction:
        count = math.prod(x.size(axis) for axis in named)
        y = b.add("Mul", y, b.cast(count / (count - correction) if count > correction else math.nan, x.dtype))
    return y, mean if keepdim else b.add("Squeeze", mean, over)


def _var(root: bool = False, mean: bool = False) -> Callable[..., Any]:
    """Adapter of `var`, `std` and `var_mean`, in their forms with `unbiased` and with `correction`."""

    def apply(b: Emitter, x: Any, *args: Any) -> Any:
        *axes, last, keepdim = (*args, False) if len(args) == 1 else args  # over all axes: `unbiased` alone
        correction = 1 if last is None else last
        y, average = _variance(b, x, axes[0] if axes else None, float(correction), keepdim)
        y = b.add("Sqrt", y) if root else y
        return [y, average] if mean else y

    return apply


def _norm(b: Emitter, x: Any, order: Any = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    """Vector norm of any order."""
    order = 2 if order is None else order
    x, over = b.cast(x, b.out.dtype), _axes(b, x, axes)
    if abs(order) == math.inf:
        return b.add("ReduceMax" if order > 0 else "ReduceMin", b.add("Abs", x), over, keepdims=int(keepdim))
    if order == 0:
        counted = b.add("Cast", b.add("Cast", x, to=np.dtype(np.bool_)), to=b.dtype(b.out.dtype))
        return b.add("ReduceSum", counted, over, keepdims=int(keepdim))
    if order not in (1, 2):
        powers = b.add("Pow", b.add("Abs", x), b.cast(float(order), b.out.dtype))
        whole = b.add("ReduceSum", powers, over, keepdims=int(keepdim))
        return b.add("Pow", whole, b.cast(1 / order, b.out.dtype))
    return b.add(f"ReduceL{int(order)}", x, over, keepdims=int(keepdim))


def _topk(b: Emitter, x: Any, k: Any, axis: int, largest: bool, ordered: bool) -> list[str]:
    k = b.sizes([k])
    found: list[str] = b.add("TopK", x, k, axis=axis, largest=int(largest), sorted=1, count=2)
    return found


def _sorted(b: Emitter, x: Any, *args: Any) -> list[str]:
    """Sort along an axis; equal elements keep their order."""
    axis, descending = args[-2:]
    k = b.add("Unsqueeze", b.operand(b.shape(x)[axis]), b.integers(0))
    found: list[str] = b.add("TopK", x, k, axis=axis, largest=int(descending), sorted=1, count=2)
    return found


def _cumsum(b: Emitter, x: Any, axis: int, dtype: Any = None) -> str:
    return b.add("CumSum", b.cast(x, b.out.dtype), b.number(axis, INT64))


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    "sum": reduced("ReduceSum"),
    "mean": reduced("ReduceMean"),
    "amax": reduced("ReduceMax"),
    "amin": reduced("ReduceMin"),
    "logsumexp": reduced("ReduceLogSumExp"),
    "prod": reduced("ReduceProd"),
    "max": _extreme("ReduceMax", "ArgMax", "Max"),
    "min": _extreme("ReduceMin", "ArgMin", "Min"),
    "argmax": _index_of("ArgMax"),
    "argmin": _index_of("ArgMin"),
    "any": _truth("ReduceMax"),
    "all": _truth("ReduceMin"),
    "var": _var(),
    "std": _var(root=True),
    "var_mean": _var(mean=True),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "frobenius_norm": lambda b, x, axes, keepdim: _norm(b, x, 2, axes, keepdim),
    "topk": _topk,
    "sort": _sorted,
    "argsort": lambda b, x, *args: _sorted(b, x, *args)[1],
    "cumsum": _cumsum,
}
