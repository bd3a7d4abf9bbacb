"""Adapters of reads and writes by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cpuconv.reading.aten.emitter import END, Emitter, Unsupported, fixed
from cpuconv.reading.aten.shapes import sliced


def _whole(b: Emitter, index: Any) -> str:
    """Indices as int64."""
    return b.cast(index, torch.int64)


def _indexed(b: Emitter, x: Any, indices: Sequence[Any]) -> str:
    """x[indices], where None stands for whole axes."""
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    given = [indices[axis] for axis in axes]
    if len(axes) == 1 and given[0].dtype == torch.bool and given[0].rank == 1:
        return b.add("Compress", x, given[0], axis=axes[0])
    if any(each.dtype == torch.bool for each in given):
        if len(given) > 1 or axes[0]:
            raise Unsupported("with masks of several axes")
        return b.add("GatherND", x, b.add("Transpose", b.add("NonZero", given[0]), perm=[1, 0]))
    if len(axes) == 1:
        return b.add("Gather", x, _whole(b, given[0]), axis=axes[0])
    first, places = _first_axes(b, x, axes), _places(b, given)
    y: str = b.add("GatherND", first, places)
    ranks = max(each.rank for each in given)
    if axes == [*range(axes[0], axes[0] + len(axes))] and axes[0]:  # neighbouring axes stay where they are
        perm = [*range(ranks, ranks + axes[0]), *range(ranks), *range(ranks + axes[0], b.out.ndim)]
        y = b.add("Transpose", y, perm=perm)
    return y


def _first_axes(b: Emitter, x: Any, axes: Sequence[int]) -> str:
    """Move axes to the front."""
    rest = [axis for axis in range(x.rank) if axis not in axes]
    return b.operand(x) if [*axes] == [*range(len(axes))] else b.add("Transpose", x, perm=[*axes, *rest])


def _places(b: Emitter, indices: Sequence[Any]) -> str:
    """Tuples of broadcast indices, along a new last axis."""
    shape = torch.broadcast_shapes(*(each.meta.shape for each in indices))
    if any(type(size) is not int for size in shape) and len({each.rank for each in indices}) > 1:
        raise Unsupported("with open sizes")
    parts = []
    for each in indices:
        whole = _whole(b, each)
        if each.sizes != tuple(shape):
            whole = b.add("Expand", whole, b.integers(*map(fixed, shape)))
        parts.append(b.add("Unsqueeze", whole, b.integers(-1)))
    return b.add("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]


def _index_put(b: Emitter, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> str:
    """Copy of x in which x[indices] is written, or added to."""
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    given = [indices[axis] for axis in axes]
    values = b.cast(values, b.out.dtype) if isinstance(values, (int, float)) else values
    if (
        len(given) == 1
        and given[0].dtype == torch.bool
        and axes == [0]
        and not accumulate
        and getattr(values, "rank", 0) == 0
    ):
        mask = b.operand(given[0])
        for _ in range(x.rank - given[0].rank):
            mask = b.add("Unsqueeze", mask, b.integers(-1))
        return b.add("Where", mask, values, x)
    if any(each.dtype == torch.bool for each in given):
        raise Unsupported("with masks")
    joint = torch.broadcast_shapes(*(each.meta.shape for each in given))
    shape = b.shape(given[0]) if len(given) == 1 else [*map(fixed, joint)]
    before = axes[0] if axes == [*range(axes[0], axes[0] + len(axes))] else 0  # whole axes before neighbouring indices
    rest = [size for axis, size in enumerate(b.shape(x)) if axis not in axes]
    updates = b.add("Expand", values, b.sizes([*rest[:before], *shape, *rest[before:]]))
    if before:
        order = [
            *range(before, before + len(shape)),
            *range(before),
            *range(before + len(shape), len(rest) + len(shape)),
        ]
        updates = b.add("Transpose", updates, perm=order)
    order = [*axes, *(axis for axis in range(x.rank) if axis not in axes)]
    reduction = "add" if accumulate else "none"
    y = b.add("ScatterND", _first_axes(b, x, axes), _places(b, given), updates, reduction=reduction)
    return b.add("Transpose", y, perm=[order.index(axis) for axis in range(x.rank)]) if axes[-1] >= len(axes) else y


def _select_scatter(b: Emitter, x: Any, source: Any, axis: int, index: Any) -> str:
    """Copy of x in which x.select(axis, index) is written."""
    axis %= x.rank
    part = b.add("Unsqueeze", source, b.integers(axis))
    if not isinstance(index, int):
        raise Unsupported("at an open index")
    return _between(b, x, part, axis, index, index + 1 if index != -1 else END)


def _slice_scatter(
    b: Emitter, x: Any, source: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> str:
    """Copy of x in which a slice is written."""
    axis %= x.rank
    size = x.size(axis)
    start, end, step = slice(start, None if end is None else min(end, size), step).indices(size)
    if step == 1:
        return _between(b, x, source, axis, start, max(start, end))
    index = torch.arange(start, end, step)
    last = b.add("Transpose", x, perm=[axis, *(each for each in range(x.rank) if each != axis)])
    parts = b.add("Transpose", source, perm=[axis, *(each for each in range(x.rank) if each != axis)])
    written = b.add("ScatterND", last, index[:, None], parts)
    return b.add("Transpose", written, perm=[*range(1, axis + 1), 0, *range(axis + 1, x.rank)])


def _between(b: Emitter, x: Any, part: Any, axis: int, start: int, end: int) -> str:
    """Join what is before a part, the part, and what is behind it."""
    before = [] if start == 0 else [sliced(b, x, axis, 0, start)]
    behind = [] if end >= b.out.shape[axis] else [sliced(b, x, axis, end)]
    parts = [*before, part, *behind]
    return b.add("Concat", *parts, axis=axis) if len(parts) > 1 else b.add("Identity", part)


def _scattered(b: Emitter, x: Any, axis: int, index: Any, source: Any, reduction: str = "none") -> str:
    """Copy of x in which single elements along an axis are written."""
    if isinstance(source, (int, float)):
        source = b.add("Expand", b.cast(source, b.out.dtype), b.add("Shape", index))
    elif source.sizes != index.sizes:
        raise Unsupported("of a part of its source")
    return b.add("ScatterElements", x, index, source, axis=axis, reduction=reduction)


def _scatter_reduced(b: Emitter, x: Any, axis: int, index: Any, source: Any, reduce: str, own: bool = True) -> str:
    """Copy of x in which single elements along an axis are combined with others."""
    if reduce == "mean" or not own:
        raise Unsupported("of means, or without the elements themselves")
    return _scattered(b, x, axis, index, source, {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce])


def _masked(b: Emitter, x: Any, mask: Any) -> str:
    """Elements at which a mask is true."""
    if x.sizes != mask.sizes:
        raise Unsupported("of another shape")
    return b.add("Compress", x, b.add("Reshape", mask, b.integers(-1)))


def _one_hot(b: Emitter, x: Any, classes: int = -1) -> str:
    if classes == -1:
        raise Unsupported("without a number of classes")
    return b.add("OneHot", x, b.integers(classes), torch.tensor([0, 1]), axis=-1)


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    "index": _indexed,
    "_unsafe_index": _indexed,
    "index_select": lambda b, x, axis, index: b.add("Gather", x, _whole(b, index), axis=axis),
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "embedding": lambda b, table, index, *_: b.add("Gather", table, _whole(b, index)),
    "gather": lambda b, x, axis, index, *_: b.add("GatherElements", x, index, axis=axis),
    "take_along_dim": lambda b, x, index, axis: b.add("GatherElements", x, index, axis=axis),
    "scatter.src": _scattered,
    "scatter.value": _scattered,
    "scatter_add": lambda b, x, axis, index, source: _scattered(b, x, axis, index, source, "add"),
    "scatter_reduce.two": _scatter_reduced,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
    "masked_select": _masked,
    "one_hot": _one_hot,
    "nonzero": lambda b, x: b.add("Transpose", b.add("NonZero", x), perm=[1, 0]),
}
