"""Movements: copies of all elements of one view of a tensor to another, described once for all kinds of loops.

A movement is a list of axes, each with its size and its stride in both views. Views in unequal channel blocks have no
such list: there, the axes are those of an image, whose channels have a block size in each view and may end within a
block. Where both describe a movement, either kind of loops may serve it.

Costs are cycles per cache line of elements that are in L2. They only rank kinds of loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32, U8, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Operand, Ref
from cpuconv.kernels.binding.tensor_view import TensorView, image_shape
from cpuconv.kernels.copies.views import plane
from cpuconv.symbolic.sizes import now
from layouts import Strides

LINE = 64  # bytes of a cache line
WAY = 4096  # bytes between cache lines that share an L1 set
OPEN = 4  # cache lines of a set that may be open at a time: half of its ways, or fewer
FEW_SETS = 8  # L1 sets: the cache lines of pixels that share no more evict each other soonest

_OF_SIZE = {element.bytes: element for element in (U8, BF16, F32)}


class _Costs(NamedTuple):
    """Parts of the cost of loops, in cycles per cache line or per element, fitted to measurements on a Zen 4."""

    vector: float = 4.0  # a cache line that is copied by vectors, or transposed in registers
    buffer: float = 4.0  # a cache line that passes through a buffer
    partial: float = 8.0  # a cache line of vectors whose channels end within a 32-bit group
    refetch: float = 8.0  # a cache line that was evicted before all of it was used
    evicted: float = 16.0  # the same, with few sets
    lane: float = 1.0  # an element that is packed alone into a vector
    short_row: float = 4.0  # the same, from a row of a few pixels
    element: float = 1.25  # an element that is copied alone
    far_element: float = 2.0  # the same, from a cache line of its own


COSTS = _Costs()


class Axis(NamedTuple):
    """An axis of both views: its size in elements, and its stride in each view, in bytes."""

    size: int
    x: int
    y: int


ONE = Axis(1, 0, 0)


@dataclass(frozen=True)
class Movement:
    """A copy of all elements from one view to another.

    Attributes
    ----------
    isa : Isa
    threads : int
    x, y : Ref
        Addresses of the first elements.
    size : int
        Bytes per element; bits are copied unchanged.
    """

    isa: Isa
    threads: int
    x: Ref
    y: Ref
    size: int


@dataclass(frozen=True)
class Strided(Movement):
    """A movement by axes, in any order; strides of y are positive.

    With a `table`, `first` is one more, outermost axis; its element i is read at ``x + table[i]``.
    """

    axes: tuple[Axis, ...]
    first: Axis = ONE
    table: np.ndarray | None = None


@dataclass(frozen=True)
class Image(Movement):
    """A movement of an activation; its axes are those of `Strides`, whose blocks may differ.

    Elements behind the last channel, to the end of the target's last block, become zero.
    """

    n: int
    channels: int
    rows: int
    width: int
    source: Strides
    target: Strides

    @property
    def element(self) -> Element:
        """An element type of this size."""
        return _OF_SIZE[self.size]


def known(value: Any) -> Any:
    """A movement, or a part of one, with the current numbers of symbolic sizes."""
    if isinstance(value, Movement):
        return replace(value, **{each.name: known(getattr(value, each.name)) for each in fields(value)})
    if isinstance(value, tuple):
        numbers = map(known, value)
        return type(value)(*numbers) if hasattr(value, "_fields") else tuple(numbers)
    return now(value)


def image_movements(
    isa: Isa,
    shape_nchw: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    threads: int,
    element: Element = F32,
) -> list[Image | Strided]:
    """Describe the movement of an activation between two views of any layouts, in all ways that there are."""
    n, channels, height, width = shape_nchw
    rows, width, (source, target) = plane(height, width, x.strides, y.strides)
    memory, block = (isa, threads, x.ref, y.ref, element.bytes), source.block
    image = Image(*memory, n, channels, rows, width, source, target)
    if block != target.block or block > 1 and channels % block:
        return [image]
    sizes = {"n": n, "cb": channels // block, "h": rows, "w": width, "c": block}
    axes = (Axis(size, getattr(source, name), getattr(target, name)) for name, size in sizes.items())
    return [image, Strided(*memory, tuple(axes))]


def tensor_movements(
    processor: Processor, x: TensorView, y: TensorView, table: np.ndarray | None = None
) -> list[Image | Strided]:
    """Describe the movement of a tensor to another of the same shape, in all ways that there are.

    Parameters
    ----------
    processor : Processor
    x, y : TensorView
        Tensors of any forms and strides, not empty; strides of `y` are positive, and its elements do not overlap.
    table : np.ndarray or None
        If given, element i of the first axis is read at ``x.ref + table[i]`` bytes, instead of by the first stride.
    """
    isa, threads = processor.isa, processor.threads
    if x.block != y.block:
        return image_movements(isa, image_shape(x.shape), x.operand, y.operand, threads, x.element)
    axes = [Axis(*axis) for axis in zip(x.physical, x.strides, y.strides, strict=True)]
    memory = isa, threads, x.ref, y.ref, x.dtype.itemsize
    if table is not None:
        return [Strided(*memory, tuple(axes[1:]), axes[0], table)]
    strided = Strided(*memory, ordered(axes))
    image = _as_image(strided)
    return [strided] if image is None else [image, strided]


def merge_axes(axes: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Merge axes (size, byte strides in one or more views) that are contiguous with each other in all views."""
    kept: list[tuple[int, ...]] = []
    for size, *steps in axes:
        if size == 1:
            continue
        if kept and all(outer == size * inner for outer, inner in zip(kept[-1][1:], steps, strict=True)):
            kept[-1] = (kept[-1][0] * size, *steps)
        else:
            kept.append((size, *steps))
    return kept


def ordered(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes by their strides in the target, the smallest last, merged where possible."""
    by_stride = sorted((axis for axis in axes if axis.size > 1), key=lambda axis: -axis.y)
    return tuple(Axis(*axis) for axis in merge_axes(by_stride))


def _as_image(strided: Strided) -> Image | None:
    """Describe merged axes as an image between NCHW and NHWC; None where no two of them allow it."""
    axes, memory = strided.axes, (strided.isa, strided.threads, strided.x, strided.y, strided.size)
    read = next((axis for axis in axes if axis.x == strided.size), ONE)
    written = axes[-1] if axes else ONE
    if strided.size not in _OF_SIZE or len(axes) > 4 or read is ONE or read is written:
        return None
    if written.y != strided.size or written.x <= 0:
        return None
    n, h = [ONE, ONE, *(axis for axis in axes if axis is not read and axis is not written)][-2:]
    forwards = strided.size == F32.bytes or now(read.size) > now(written.size)
    pixels, channels = (read, written) if forwards else (written, read)
    views = (Strides(n[at], 1, channels[at], 0, h[at], pixels[at]) for at in (1, 2))
    return Image(*memory, n.size, channels.size, h.size, pixels.size, *views)


# --- caches ---------------------------------------------------------------------------------------------------------


def count_l1_sets(step: int) -> int:
    """Number of different L1 sets of addresses that are `step` bytes apart."""
    return min(WAY // math.gcd(now(step), WAY), WAY // LINE)
