"""Adapters of operators that move elements without changing them: views, joins, parts and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cpuconv.reading.aten.emitter import END, INT64, Emitter, Operand, Unsupported, batched, fixed
from cpuconv.reading.aten.numbers import converted


def reshaped(b: Emitter, x: Any, sizes: Any = None) -> str:
    """Reshape to given sizes, or to those of the result; one open size that is not given is derived."""
    if sizes is None or not isinstance(sizes, (list, tuple)):
        sizes = [size if type(size) is int else -1 for size in b.out.shape]
    if sum(type(size) is int and size == -1 for size in sizes) > 1:
        raise Unsupported("with several open sizes")
    return b.add("Reshape", x, b.sizes(sizes), allowzero=1)


def _flattened(b: Emitter, x: Any, first: int = 0, last: int = -1) -> str:
    """Merge axes."""
    if x.rank == 0:
        return b.add("Reshape", x, b.integers(1))
    first, last = first % x.rank, last % x.rank
    sizes = [-1 if size is None else size for size in x.sizes]
    merged = [*sizes[:first], -1, *sizes[last + 1 :]]
    if merged.count(-1) == 1 and 0 not in sizes:
        return b.add("Reshape", x, b.integers(*merged))
    if merged.count(-1) == 2 and first == 1 and 0 not in sizes:  # an open batch: 0 copies its size
        return b.add("Reshape", x, b.integers(0, *merged[1:]))
    shape = b.shape(x)
    product: Any = 1
    for size in shape[first : last + 1]:
        plain = isinstance(size, int) and isinstance(product, int)
        product = product * size if plain else b.add("Mul", b.cast(product, torch.int64), b.cast(size, torch.int64))
    return b.add("Reshape", x, b.sizes([*shape[:first], product, *shape[last + 1 :]]), allowzero=1)


def _unflattened(b: Emitter, x: Any, axis: int, sizes: Sequence[Any]) -> str:
    """Split an axis."""
    axis %= x.rank
    shape = b.shape(x)
    return b.add("Reshape", x, b.sizes([*shape[:axis], *sizes, *shape[axis + 1 :]]), allowzero=1)


def _permuted(b: Emitter, x: Any, order: Sequence[int]) -> str:
    return b.add("Transpose", x, perm=[axis % x.rank for axis in order])


def _swapped(b: Emitter, x: Any, first: int = 0, second: int = 1) -> str:
    """Exchange two axes."""
    if x.rank < 2:
        return b.add("Identity", x)
    order = [*range(x.rank)]
    order[first], order[second] = order[second], order[first]
    return b.add("Transpose", x, perm=order)


def _moved(b: Emitter, x: Any, source: Any, to: Any) -> str:
    """Move axes to other places."""
    axes, places = ([each % x.rank for each in ([side] if isinstance(side, int) else side)] for side in (source, to))
    order: list[Any] = [None] * x.rank
    for axis, place in zip(axes, places, strict=True):
        order[place] = axis
    rest = iter(axis for axis in range(x.rank) if axis not in axes)
    return b.add("Transpose", x, perm=[next(rest) if axis is None else axis for axis in order])


def _squeezed(b: Emitter, x: Any, axes: Any = None) -> str:
    """Remove axes of size 1: all, or those among some."""
    among = range(x.rank) if axes is None else [axes] if isinstance(axes, int) else axes
    removed = [axis % x.rank for axis in among if x.rank and x.sizes[axis % x.rank] == 1]
    return b.add("Squeeze", x, b.integers(*removed)) if removed else b.add("Identity", x)


def _expanded(b: Emitter, x: Any, sizes: Sequence[Any], implicit: bool = False) -> str:
    return b.add("Expand", x, b.sizes([1 if type(size) is int and size == -1 else size for size in sizes]))


def _repeated(b: Emitter, x: Any, counts: Sequence[Any]) -> str:
    """Repeat along each axis; further counts are those of new axes before the others."""
    new, counts = len(counts) - x.rank, [1] * (x.rank - len(counts)) + [*counts]
    whole = b.add("Unsqueeze", x, b.integers(*range(new))) if new > 0 else x
    return b.add("Tile", whole, b.sizes(counts))


def _repeated_each(b: Emitter, x: Any, count: Any, axis: int | None = None, size: Any = None) -> str:
    """Repeat each element along an axis."""
    if axis is None:
        x, axis = Operand.of(b.add("Reshape", x, b.integers(-1)), x.meta.flatten()), 0
    axis %= x.rank
    if not isinstance(count, int):
        if getattr(count, "known", None) is None:
            raise Unsupported("with counts that are not constant")
        each = count.known.expand(x.size(axis)) if count.rank == 1 else count.known
        return b.add("Gather", x, torch.arange(x.size(axis)).repeat_interleave(each), axis=axis)
    ones = [1] * (x.rank + 1)
    ones[axis + 1] = count
    tiled = b.add("Tile", b.add("Unsqueeze", x, b.integers(axis + 1)), b.integers(*ones))
    shape = b.shape(x)
    merged = shape[axis] * count if isinstance(shape[axis], int) else -1
    return b.add("Reshape", tiled, b.sizes([*shape[:axis], merged, *shape[axis + 1 :]]))


# --- joins and parts -------------------------------------------------------------------------------------------------


def _joined(b: Emitter, parts: Sequence[Any], axis: int = 0) -> str:
    """Concatenate; empty tensors of rank 1 are ignored, as in PyTorch."""
    kept = [each for each in parts if each.rank == b.out.ndim]
    names = b.promoted(*kept, dtype=b.out.dtype)
    return b.add("Concat", *names, axis=axis) if len(names) > 1 else b.add("Identity", names[0])


def _stacked(b: Emitter, parts: Sequence[Any], axis: int = 0) -> str:
    axis %= b.out.ndim
    names = [b.add("Unsqueeze", each, b.integers(axis)) for each in b.promoted(*parts, dtype=b.out.dtype)]
    return b.add("Concat", *names, axis=axis)


def split_to(b: Emitter, x: Any, sizes: Sequence[Any], axis: int) -> list[str]:
    """Split into parts of given sizes."""
    if len(sizes) == 1:
        return [b.add("Identity", x)]
    parts: list[str] = b.add("Split", x, b.sizes(sizes), axis=axis, count=len(sizes))
    return parts


def _split(b: Emitter, x: Any, size: Any, axis: int = 0) -> list[str]:
    """Split into parts of a size, or of given sizes."""
    if isinstance(size, (list, tuple)):
        return split_to(b, x, size, axis)
    whole = x.size(axis)
    return split_to(b, x, [min(size, whole - at) for at in range(0, max(whole, 1), max(size, 1))], axis)


def _split_at(b: Emitter, x: Any, places: Sequence[int], axis: int = 0) -> list[str]:
    """Split at given places."""
    ends = [0, *places, END]
    return [sliced(b, x, axis, start, end) for start, end in zip(ends, ends[1:], strict=False)]


def _chunked(b: Emitter, x: Any, count: int, axis: int = 0) -> list[str]:
    """Split into a number of parts, the last of which may be smaller."""
    return _split(b, x, -(-x.size(axis) // count), axis)


def _unbound(b: Emitter, x: Any, axis: int = 0) -> list[str]:
    """Split into parts without the axis."""
    parts = split_to(b, x, [1] * x.size(axis), axis)
    return [b.add("Squeeze", each, b.integers(axis)) for each in parts]


def sliced(b: Emitter, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    """Slice of an axis; negative ends count from its end."""
    ends = [b.sizes([each]) for each in (0 if start is None else start, END if end is None else end)]
    return b.add("Slice", x, *ends, b.integers(axis), b.integers(step))


def _narrowed(b: Emitter, x: Any, axis: int, start: Any, length: Any) -> str:
    """Slice of a length."""
    if isinstance(start, int) and isinstance(length, int):
        if start < 0:
            start += x.size(axis)
        return sliced(b, x, axis, start, start + length)
    end = b.add("Add", b.cast(start, torch.int64), b.cast(length, torch.int64))
    return sliced(b, x, axis, start, end)


def _padded(b: Emitter, x: Any, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> str:
    """Pad the last axes: pairs of numbers from the last axis on; negative numbers crop."""
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)][::-1]
    axes = range(x.rank - len(pairs), x.rank)
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    number = b.cast(0 if value is None else value, x.dtype) if mode == "constant" else None
    ends = b.sizes([pair[side] for side in (0, 1) for pair in pairs])
    return b.add("Pad", x, ends, number, b.integers(*axes), mode=names[mode])


def _flipped(b: Emitter, x: Any, axes: Sequence[int]) -> str:
    count = len(axes)
    ends = (b.integers(*[each] * count) for each in (-1, -END))
    return b.add("Slice", x, *ends, b.integers(*axes), b.integers(*[-1] * count))


def _rolled(b: Emitter, x: Any, shifts: Any, axes: Any) -> str:
    """Shift along axes; elements that leave at one end enter at the other."""
    shifts, axes = ([each] if isinstance(each, int) else each for each in (shifts, axes))
    if not axes:
        flat = Operand.of(b.add("Reshape", x, b.integers(-1)), x.meta.flatten())
        return b.add("Reshape", _rolled(b, flat, shifts, [0]), b.sizes(b.shape(x)))
    y = x
    for shift, axis in zip(shifts, axes, strict=True):
        if x.sizes[axis] is not None:
            shift %= max(x.size(axis), 1)
        y = b.add("Concat", sliced(b, y, axis, -shift), sliced(b, y, axis, 0, -shift), axis=axis) if shift else y
    return y if y is not x else b.add("Identity", x)


def _channels_shuffled(b: Emitter, x: Any, groups: int) -> str:
    n, channels, *plane = b.shape(x)
    apart = b.add("Reshape", x, b.sizes([n, groups, fixed(channels) // groups, *plane]))
    turned = b.add("Transpose", apart, perm=[0, 2, 1, *range(3, x.rank + 1)])
    return b.add("Reshape", turned, b.sizes([n, channels, *plane]))


def _unshuffled(b: Emitter, x: Any, factor: int) -> str:
    """Blocks of pixels become channels, next to one another for one channel before."""
    n, channels, height, width = (x.size(axis) if axis else size for axis, size in enumerate(b.shape(x)))
    apart = b.add("Reshape", x, b.sizes([n, channels, height // factor, factor, width // factor, factor]))
    turned = b.add("Transpose", apart, perm=[0, 1, 3, 5, 2, 4])
    return b.add("Reshape", turned, b.sizes([n, channels * factor**2, height // factor, width // factor]))


def _windows(b: Emitter, x: Any, axis: int, size: int, step: int) -> str:
    """Windows of an axis, as a new last axis: `Tensor.unfold`."""
    axis %= x.rank
    count = (x.size(axis) - size) // step + 1
    index = torch.arange(count)[:, None] * step + torch.arange(size)
    y = b.add("Gather", x, index, axis=axis)
    order = [at for at in range(x.rank + 1) if at != axis + 1]
    return b.add("Transpose", y, perm=[*order, axis + 1])


@batched(4)
def _columns(b: Emitter, x: Any, kernel: Sequence[int], dilation: Any, padding: Any, stride: Any) -> str:
    """Windows of images as columns: `nn.Unfold`."""
    y, meta = _padded(b, x, [padding[1]] * 2 + [padding[0]] * 2), x.meta
    for axis in (0, 1):
        size = meta.shape[2 + axis] + 2 * padding[axis]
        count = (fixed(size) - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        index = torch.arange(kernel[axis])[:, None] * dilation[axis] + torch.arange(count) * stride[axis]
        y = b.add("Gather", y, index, axis=2 + 2 * axis)  # (n, c, kernel, count, ...)
    y = b.add("Transpose", y, perm=[0, 1, 2, 4, 3, 5])
    n, channels = b.shape(x)[:2]
    return b.add("Reshape", y, b.sizes([n, fixed(channels) * kernel[0] * kernel[1], -1]))


def _meshgrid(b: Emitter, parts: Sequence[Any], indexing: str = "ij") -> list[str]:
    """Each vector along its own axis, repeated along the others."""
    order = [*range(len(parts))]
    if indexing == "xy" and len(parts) > 1:
        order[:2] = 1, 0
    sizes: list[Any] = [1] * len(parts)
    for part, axis in zip(parts, order, strict=True):
        sizes[axis] = b.shape(part)[0] if part.rank else 1
    ones = ([-1 if at == axis else 1 for at in range(len(parts))] for axis in order)
    return [b.add("Expand", b.add("Reshape", part, b.integers(*each)), b.sizes(sizes))
            for part, each in zip(parts, ones, strict=True)]  # fmt: skip


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), reshaped),
    "view.dtype": None,
    "reshape_as": lambda b, x, other: b.add("Reshape", x, b.add("Shape", other)),
    "view_as": lambda b, x, other: b.add("Reshape", x, b.add("Shape", other)),
    "flatten": _flattened,
    "unflatten": _unflattened,
    "permute": _permuted,
    "transpose": _swapped,
    "swapaxes": _swapped,
    "swapdims": _swapped,
    "t": _swapped,
    "numpy_T": lambda b, x: b.add("Transpose", x, perm=[*range(x.rank)][::-1]),
    "mT": lambda b, x: _swapped(b, x, -2, -1),
    "movedim": _moved,
    "moveaxis": _moved,
    "squeeze": _squeezed,
    "unsqueeze": lambda b, x, axis: b.add("Unsqueeze", x, b.integers(axis)),
    "expand": _expanded,
    "expand_as": lambda b, x, other: b.add("Expand", x, b.add("Shape", other)),
    "broadcast_to": _expanded,
    "repeat": _repeated,
    "tile": _repeated,
    "repeat_interleave.self_int": _repeated_each,
    "repeat_interleave.self_Tensor": _repeated_each,
    "cat": _joined,
    "concat": _joined,
    "concatenate": _joined,
    "stack": _stacked,
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split"), _split),
    "chunk": _chunked,
    "tensor_split.indices": _split_at,
    "unsafe_chunk": _chunked,
    "unbind": _unbound,
    "slice": sliced,
    "narrow": _narrowed,
    "select.int": lambda b, x, axis, index: b.add("Gather", x, b.number(index, INT64) if isinstance(index, int)
                                                  else index, axis=axis),
    **{name: _padded for name in ("pad", "constant_pad_nd")},
    "constant_pad_nd": lambda b, x, pad, value=0: _padded(b, x, pad, "constant", value),
    **{f"{name}_pad{axes}d": (lambda b, x, pad, mode=mode: _padded(b, x, pad, mode))
       for name, mode in (("reflection", "reflect"), ("replication", "replicate")) for axes in (1, 2, 3)},
    "flip": _flipped,
    "roll": _rolled,
    "pixel_shuffle": lambda b, x, factor: b.add("DepthToSpace", x, blocksize=factor, mode="CRD"),
    "pixel_unshuffle": _unshuffled,
    "channel_shuffle": _channels_shuffled,
    "native_channel_shuffle": _channels_shuffled,
    "unfold": _windows,
    "im2col": _columns,
    "meshgrid": _meshgrid,
    "atleast_1d": lambda b, x: reshaped(b, x) if x.rank < 1 else converted(b, x),
}  # fmt: skip
