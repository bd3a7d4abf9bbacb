"""Pooling in channel blocks with overlapping windows, computed in strips of outputs.

A strip is a tile of adjacent outputs of a row. Its kernel first reduces the input rows under the window to one vector
per column of the strip, in a loop over the rows inside the input. Then it reduces columns: spans of two, four, eight …
columns serve all windows that contain them. The strips at the ends of a row have another kernel, with the range of
existing columns as arguments; it uses the neutral element for others. Strips have one of the widths `OUTPUTS`, and
overlap in a row that they do not divide. So a pooling needs few kernels for planes of all sizes.

The work is cut into units (image, channel block, output row).
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import load_as_float, store_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.columns import columns_for
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.rows import zero_pixels
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.windows.planes import FIELDS, PlaneTile, plane_args, store_nearest
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import applied, is_symbolic, items_of, now

OUTPUTS = (1, 2, 4, 7, 14)  # outputs of a strip, whose code is straight-line
_NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
_WIDEST = 32  # columns of a window; those of wider ones would not stay in registers
_ALWAYS = 4  # outputs of strips that are candidates whatever the number of registers
_HELD = 5 / 8  # share of the registers for columns of a strip; others are for their operands
_CALL = 6  # overhead of a strip, in vector operations


@dataclass(frozen=True)
class Pooling:
    """Parameters of a pooling: a window over the rows and the columns of a plane.

    Attributes
    ----------
    fold : str
        Name in `FOLDS`.
    kernel, strides, dilations, near : tuple[int, int]
        Taps of the window, strides of windows and of taps, and the padding before the first input.
    factors : np.ndarray or None
        Factor of each output, float32 (rows, columns); or (rows, columns, 2): factor and addend, with the result
        rounded to an 8-bit type. None: no factor.
    """

    fold: str
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    near: tuple[int, int]
    factors: np.ndarray | None = None

    @property
    def shifted(self) -> bool:
        """Whether there is an addend."""
        return self.factors is not None and now(self.factors).ndim == 3

    def taps(self, axis: int, output: int, size: int) -> range:
        """The inputs, of `size`, under the window of an output along an axis: 0 for rows, 1 for columns."""
        start = output * self.strides[axis] - self.near[axis]
        step = self.dilations[axis]
        first = start % step if start < 0 else start
        return range(first, max(first, min(size, start + self.kernel[axis] * step)), step)


@dataclass(frozen=True)
class StripTile:
    """A strip: its outputs, and whether columns of their windows may be missing at either end.

    It computes in float32; a pixel of narrow elements is several vectors.
    """

    lanes: int
    fold: str
    outputs: int
    taps: int
    stride: int
    dilation: int
    edged: bool
    scaled: bool
    element: Element = F32
    shifted: bool = False

    @property
    def reach(self) -> int:
        """Columns from the first tap of a window to its last."""
        return (self.taps - 1) * self.dilation

    @property
    def columns(self) -> list[int]:
        """Columns under the windows."""
        steps = range(0, self.taps * self.dilation, self.dilation)
        return sorted({output * self.stride + step for output in range(self.outputs) for step in steps})

    @property
    def wide(self) -> int:
        """Columns from the first to the last one under the windows."""
        return (self.outputs - 1) * self.stride + self.reach + 1

    def may_be_missing(self, column: int) -> bool:
        """Whether a column may be outside of the input; each window has at least one inside."""
        return self.edged and not self.reach <= column < self.wide - self.reach


@MicroKernel
def pool_strip(
    tile: StripTile, builder: ir.IRBuilder, x: Any, line: Any, rows: Any, y: Any, factors: Any, first: Any, last: Any
) -> None:
    """Compute the outputs of a strip.

    Parameters
    ----------
    x, line, rows
        Address of the first window's first column, padding included, in the first row inside the input; the byte stride
        to the next such row, and their number, at least 1.
    y
        Address of the first output.
    factors
        Address of the factor of each output, each followed by the addend, if any.
    first, last
        Range of existing columns, counted from the first window's (`edged` only).
    """
    vec = Vector(builder, tile.lanes)
    for piece in range(0, vec.size, vec.lanes * tile.element.bytes):
        _emit_strip(tile, vec, piece, (x, line, rows, y, factors, first, last))


def _emit_strip(tile: StripTile, vec: Vector, piece: int, words: tuple[Any, ...]) -> None:
    """Emit the vectors of the outputs at byte offset `piece` of their pixels."""
    x, line, rows, y, factors, first, last = words
    builder, fold, element = vec.builder, FOLDS[tile.fold], tile.element
    columns = tile.columns
    neutral, size = vec.constant(_NEUTRAL[tile.fold]), I64(vec.size)
    exists = {
        column: builder.and_(builder.icmp_signed("<=", first, I64(column)), builder.icmp_signed("<", I64(column), last))
        for column in columns
        if tile.may_be_missing(column)
    }

    def load(start: Any, column: int) -> Any:
        if column not in exists:
            return load_as_float(vec, element, vec.offset(start, column * vec.size + piece))
        there = builder.mul(builder.select(exists[column], I64(column), first), size)
        value = load_as_float(vec, element, vec.offset(vec.offset(start, there), piece))
        return builder.select(exists[column], value, neutral)

    def row(index: Any) -> list[Any]:
        start = vec.pointer(builder.add(x, builder.mul(index, line)))
        return [load(start, column) for column in columns]

    def further(index: Any, values: list[Any]) -> list[Any]:
        return [fold(vec, value, seen) for value, seen in zip(values, row(index), strict=True)]

    folded = repeat(vec, I64(1), rows, row(I64(0)), further)
    spans = {(column, 1): value for column, value in zip(columns, folded, strict=True)}

    def span(first: int, count: int) -> Any:
        """Reduce `count` columns: the greatest power of two of them first, then the rest."""
        if (first, count) not in spans:
            half = 1 << (count - 1).bit_length() - 1
            spans[first, count] = fold(vec, span(first, half), span(first + half * tile.dilation, count - half))
        return spans[first, count]

    y, factors, entry = vec.pointer(y), vec.pointer(factors), factor_bytes(tile.shifted)
    for output in range(tile.outputs):
        value = span(output * tile.stride, tile.taps)
        if tile.scaled:
            value = vec.mul(value, vec.broadcast(vec.offset(factors, entry * output)))
        if tile.shifted:
            value = vec.add(value, vec.broadcast(vec.offset(factors, entry * output + F32.bytes)))
        (store_nearest if tile.shifted else store_float)(vec, element, value, vec.offset(y, output * vec.size + piece))


_call_strip = pool_strip.caller()


def factor_bytes(shifted: bool) -> int:
    """Bytes per output in `factors`: a factor, and an addend if `shifted`."""
    return 2 * F32.bytes if shifted else F32.bytes


@kernel(f"inner edged strips strip wide stride near in_width rows line factors factor {FIELDS}")
def pool(tile, worker, before, part, parts, args):
    """y = pooling of x, by strips.

    `rows` has three int64 words per output row: byte offset of the first row under the window, number of such rows, and
    byte offset of its factors, of `factor` bytes each. Strips start at output columns `strip`, 2·`strip` …, but the
    last one ends with the row; `wide` input columns are under a strip.
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
            for i in range(args.strips):
                at = min(i * args.strip, args.width - args.strip)
                start = at * args.stride - args.near
                inside = start >= 0 and start + args.wide <= args.in_width
                _call_strip(
                    args.inner if inside else args.edged,
                    x=source + start * pixel,
                    line=args.line,
                    rows=count,
                    y=target + at * pixel,
                    factors=factors + args.factor * at,
                    first=max(0, -start),
                    last=min(args.wide, args.in_width - start),
                )


def strip_tiles(tile: StripTile, isa: Isa) -> list[StripTile]:
    """All strips of the pooling that `tile` is a strip of, for planes of any width."""
    found = [replace(tile, outputs=outputs, edged=edged) for outputs in OUTPUTS for edged in (False, True)]
    return [each for each in found if each.outputs <= _ALWAYS or len(each.columns) <= isa.registers * _HELD]


def _strip_width(isa: Isa, width: int, pooling: Pooling, tile: StripTile) -> int:
    """Outputs per strip with the fewest operations in a row of `width`."""

    def operations(strip: StripTile) -> int:
        each = len(strip.columns) * pooling.kernel[0] + strip.outputs * math.ceil(math.log2(tile.taps) + 1) + _CALL
        return divide(width, strip.outputs) * each

    return min((each for each in strip_tiles(tile, isa) if each.outputs <= width), key=operations).outputs


def _sees_all(pooling: Pooling, outputs: int, size: int) -> bool:
    """Whether the window of each output of a row contains an input."""
    return all(pooling.taps(1, output, size) for output in range(outputs))


def _tables(
    pooling: Pooling, size: int, outputs: int, line: int, factors: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The words of each output row, and the distinct rows of factors."""
    entries = np.zeros((outputs, 3), np.int64)
    for row in range(outputs):
        seen = pooling.taps(0, row, size)
        entries[row, :2] = seen.start * line, len(seen)
    if factors is None:
        return entries, np.zeros(0, np.float32)
    distinct, which = np.unique(factors, axis=0, return_inverse=True)
    entries[:, 2] = which.reshape(-1) * distinct[0].size * F32.bytes
    return entries, np.ascontiguousarray(distinct, np.float32)


def pool_step(isa: Isa, x: TensorView, y: TensorView, pooling: Pooling, parts: int) -> Step | None:
    """The call that pools `x`, in channel blocks, to `y`; None where a window is too wide for strips, or has no column
    inside the input.
    """
    lanes = isa.lanes
    (h, w), (height, width) = x.physical[2:4], y.physical[2:4]
    taps, stride, dilation, near = pooling.kernel[1], pooling.strides[1], pooling.dilations[1], pooling.near[1]
    if taps > _WIDEST or near > (taps - 1) * dilation:
        return None
    bare = replace(pooling, factors=None)
    if not applied(functools.partial(_sees_all, bare), width, w):
        return None
    scaled = pooling.factors is not None
    tile = StripTile(lanes, pooling.fold, 1, taps, stride, dilation, False, scaled, x.element, pooling.shifted)
    tile = replace(tile, outputs=_strip_width(isa, now(width), pooling, tile))

    def strip(outputs: int, edged: bool) -> MicroRef:
        return MicroRef(pool_strip, replace(tile, outputs=outputs, edged=edged))

    others = [each.outputs for each in strip_tiles(tile, isa)]
    columns = columns_for(tile.outputs, others, width, lambda each: [strip(each, False), strip(each, True)])
    outputs = columns.taken
    if width < outputs:
        raise ValueError("a strip is wider than the plane")
    strips = divide(width, outputs)
    starts = [] if is_symbolic(width) else [min(at * outputs, width - outputs) * stride - near for at in range(strips)]
    inside = [start >= 0 and start + tile.wide <= w for start in starts]
    x_line = x.strides[2]
    tables = functools.partial(_tables, bare)
    factors = () if pooling.factors is None else (pooling.factors,)
    entries, distinct = items_of(applied(tables, h, height, x_line, *factors))
    args: Args = {**plane_args(x, y), "factors": distinct if factors else 0, "factor": factor_bytes(pooling.shifted)}
    args |= {
        "inner": columns.ref(lambda each: strip(each, False)) if any(inside) or not inside else 0,
        "edged": 0 if inside and all(inside) else columns.ref(lambda each: strip(each, True)),
        "strips": strips,
        "strip": outputs,
        "wide": (outputs - 1) * stride + (taps - 1) * dilation + 1,
        "stride": stride,
        "near": near,
        "in_width": w,
        "rows": entries,
        "line": pooling.dilations[0] * x_line,
    }
    return Step(pool, PlaneTile(lanes), args, parts)
