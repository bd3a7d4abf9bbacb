"""Poolings in channel blocks: windows that overlap, a strip of outputs at a time.

A strip is a tile of neighbouring outputs of a row. Its kernel first folds the input rows under the window, one vector
for each column of the strip, in a loop over as many rows as lie inside the input; then it folds columns, where spans of
two, four, eight … columns serve all windows that contain them. The strips of the first and the last columns leave out
the columns over padding.

The work is cut into units (image, channel block, output row).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import load_as_float, store_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.copies.rows import zero_pixels
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.windows.planes import FIELDS, PlaneTile, plane_args, store_nearest
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_WIDEST = 32  # columns of a window; those of wider ones would not stay in registers
_MOST_OUTPUTS = 16  # of a strip: its code is straight-line
_HELD = 5 / 8  # of the registers hold columns of a strip, the others what they are compared with
_CALL = 6  # what a strip costs beside its vectors, in their operations


@dataclass(frozen=True)
class Pooling:
    """What is pooled: a window over the rows and the columns of a plane.

    Attributes
    ----------
    fold : str
        A name of `FOLDS`.
    kernel, strides, dilations, near : tuple[int, int]
        Taps of the window, the distances of windows and of taps, and the padding before the first input.
    factors : np.ndarray or None
        What each output is multiplied by, float32 (rows, columns); or (rows, columns, 2): also what is added then, the
        result being rounded to what bytes hold. None: by one.
    """

    fold: str
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    near: tuple[int, int]
    factors: np.ndarray | None = None

    @property
    def shifted(self) -> bool:
        """Whether there is something to add."""
        return self.factors is not None and self.factors.ndim == 3

    def taps(self, axis: int, output: int, size: int) -> range:
        """The inputs, of `size`, that the window of an output sees along an axis: 0 for rows, 1 for columns."""
        start = output * self.strides[axis] - self.near[axis]
        step = self.dilations[axis]
        first = start % step if start < 0 else start
        return range(first, max(first, min(size, start + self.kernel[axis] * step)), step)


@dataclass(frozen=True)
class StripTile:
    """A strip: its outputs, the columns of their windows, and which of these exist, counted from the first window's.

    Its elements are floats; a pixel of narrow ones is several vectors of lanes.
    """

    lanes: int
    fold: str
    outputs: int
    taps: int
    stride: int
    dilation: int
    first: int
    last: int
    scaled: bool
    element: Element = F32
    shifted: bool = False

    @property
    def columns(self) -> dict[int, list[int]]:
        """The columns that exist under each output's window."""
        windows = {}
        for output in range(self.outputs):
            start = output * self.stride
            window = range(start, start + self.taps * self.dilation, self.dilation)
            windows[output] = [column for column in window if self.first <= column < self.last]
        return windows


@MicroKernel
def pool_strip(tile: StripTile, builder: ir.IRBuilder, x: Any, line: Any, rows: Any, y: Any, factors: Any) -> None:
    """The outputs of a strip.

    Parameters
    ----------
    x, line, rows
        Address of the first window's first column, padding included, in the first row inside the input; the distance in
        bytes to the next such row, and their number, at least 1.
    y
        Address of the first output.
    factors
        Address of the factor of each output, and of what is added, beside it.
    """
    vec = Vector(builder, tile.lanes)
    for piece in range(0, vec.size, vec.lanes * tile.element.bytes):
        _emit_strip(tile, vec, piece, (x, line, rows, y, factors))


def _emit_strip(tile: StripTile, vec: Vector, piece: int, words: tuple[Any, ...]) -> None:
    """The outputs' vectors that are so many bytes behind the first of their pixels."""
    x, line, rows, y, factors = words
    builder, fold, element = vec.builder, FOLDS[tile.fold], tile.element
    windows = tile.columns
    columns = sorted({column for window in windows.values() for column in window})

    def row(index: Any) -> list[Any]:
        start = vec.pointer(builder.add(x, builder.mul(index, line)))
        return [load_as_float(vec, element, vec.offset(start, column * vec.size + piece)) for column in columns]

    def further(index: Any, values: list[Any]) -> list[Any]:
        return [fold(vec, value, seen) for value, seen in zip(values, row(index), strict=True)]

    folded = repeat(vec, I64(1), rows, row(I64(0)), further)
    spans = {(column, 1): value for column, value in zip(columns, folded, strict=True)}

    def span(first: int, count: int) -> Any:
        """The fold of `count` columns, the greatest power of two of them before the rest."""
        if (first, count) not in spans:
            half = 1 << (count - 1).bit_length() - 1
            spans[first, count] = fold(vec, span(first, half), span(first + half * tile.dilation, count - half))
        return spans[first, count]

    y, factors, entry = vec.pointer(y), vec.pointer(factors), factor_bytes(tile.shifted)
    for output, window in windows.items():
        value = span(window[0], len(window)) if window else vec.constant(0.0)
        if tile.scaled:
            value = vec.mul(value, vec.broadcast(vec.offset(factors, entry * output)))
        if tile.shifted:
            value = vec.add(value, vec.broadcast(vec.offset(factors, entry * output + F32.bytes)))
        (store_nearest if tile.shifted else store_float)(vec, element, value, vec.offset(y, output * vec.size + piece))


_call_strip = pool_strip.caller()


def factor_bytes(shifted: bool) -> int:
    """Bytes of what there is for an output: a factor, and what is added."""
    return 2 * F32.bytes if shifted else F32.bytes


@kernel(f"left inner right inner_strips strip last rows line step factors factor {FIELDS}")
def pool(tile, worker, before, part, parts, args):
    """y = the windows of x folded, by strips.

    `rows` has three words for each output row: bytes from the plane to the first row under the window, the rows that
    it sees, and bytes to its factors, of `factor` bytes. Strips of the middle start at output columns `strip`,
    2·`strip` … `last`.
    """
    pixel = 4 * tile.lanes
    unit = args.units * part // parts
    end = args.units * (part + 1) // parts
    while unit < end:
        plane = unit // args.height
        first = unit - plane * args.height
        last = min(args.height, first + end - unit)
        unit += last - first
        image = plane // args.blocks
        block = plane - image * args.blocks
        x = args.x + image * args.x_image + block * args.x_block
        y = args.y + image * args.y_image + block * args.y_block
        for row in range(first, last):
            entry = args.rows + 24 * row
            source, count = x + word(tile, entry, 0), word(tile, entry, 1)
            factors = args.factors + word(tile, entry, 2)
            target = y + row * args.width * pixel
            if count == 0:
                zero_pixels(tile, target, args.width)
                continue
            _call_strip(args.left, source, args.line, count, target, factors)
            for i in range(args.inner_strips):
                at = min((i + 1) * args.strip, args.last)
                _call_strip(
                    args.inner,
                    source + at * args.step,
                    args.line,
                    count,
                    target + at * pixel,
                    factors + args.factor * at,
                )
            if args.right:
                at = args.width - args.strip
                _call_strip(
                    args.right,
                    source + at * args.step,
                    args.line,
                    count,
                    target + at * pixel,
                    factors + args.factor * at,
                )


def _strip_width(isa: Isa, width: int, pooling: Pooling) -> int:
    """Outputs of a strip for the fewest operations in a row of `width`."""
    taps, stride, dilation = pooling.kernel[1], pooling.strides[1], pooling.dilations[1]

    def columns(outputs: int) -> int:
        return len({i * stride + tap * dilation for i in range(outputs) for tap in range(taps)})

    def operations(outputs: int) -> int:
        each = columns(outputs) * pooling.kernel[0] + outputs * math.ceil(math.log2(taps) + 1) + _CALL
        return divide(width, outputs) * each

    options = range(1, min(_MOST_OUTPUTS, width) + 1)
    return min((n for n in options if n <= 4 or columns(n) <= isa.registers * _HELD), key=operations)


def _border(pooling: Pooling, size: int, outputs: int) -> tuple[int, int]:
    """Outputs at the start and at the end of a row whose windows hang over."""
    taps, stride, dilation, near = pooling.kernel[1], pooling.strides[1], pooling.dilations[1], pooling.near[1]
    starts = [output * stride - near for output in range(outputs)]
    return sum(start < 0 for start in starts), sum(start + (taps - 1) * dilation >= size for start in starts)


def pool_step(isa: Isa, x: Place, y: Place, pooling: Pooling, parts: int) -> Step | None:
    """The call that pools `x`, in channel blocks, to `y`; None where a window is too wide for strips."""
    lanes = isa.lanes
    (h, w), (height, width) = x.physical[2:4], y.physical[2:4]
    taps, stride, dilation, near = pooling.kernel[1], pooling.strides[1], pooling.dilations[1], pooling.near[1]
    if taps > _WIDEST:
        return None
    low, high = _border(pooling, w, width)
    strip = min(width, max(_strip_width(isa, width, pooling), low, high))
    strips = divide(width, strip)
    last = width - high - strip  # where the last strip of the middle may start
    if strips > 2 and last < low:
        return None

    def at(start: int) -> MicroRef:
        """The strip that starts at an output column."""
        first = start * stride - near
        reach = (strip - 1) * stride + (taps - 1) * dilation + 1
        scaled = pooling.factors is not None
        inside = max(0, -first), max(0, min(reach, w - first))
        tile = StripTile(
            lanes, pooling.fold, strip, taps, stride, dilation, *inside, scaled, x.element, pooling.shifted
        )
        return MicroRef(pool_strip, tile)

    x_line, pixel = x.strides[2], x.strides[3]
    entries = np.zeros((height, 3), np.int64)
    for row in range(height):
        seen = pooling.taps(0, row, h)
        entries[row, :2] = seen.start * x_line - near * pixel, len(seen)
    args: Args = {**plane_args(x, y), "factors": 0, "factor": factor_bytes(pooling.shifted)}
    if pooling.factors is not None:
        distinct, which = np.unique(pooling.factors, axis=0, return_inverse=True)
        entries[:, 2] = which.reshape(-1) * distinct[0].size * F32.bytes
        args["factors"] = np.ascontiguousarray(distinct, np.float32)
    args |= {
        "left": at(0),
        "inner": at(min(strip, last)) if strips > 2 else 0,
        "right": at(width - strip) if strips > 1 else 0,
        "inner_strips": max(0, strips - 2),
        "strip": strip,
        "last": last,
        "rows": entries,
        "line": pooling.dilations[0] * x_line,
        "step": stride * pixel,
    }
    return Step(pool, PlaneTile(lanes), args, parts)
