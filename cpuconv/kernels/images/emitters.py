"""Micro-kernels of a picture's resize: transposition of 16 rows, and weighted sums along either axis, in integers.

Sums along rows of pixels need no gathers if lanes are rows: 16 rows are transposed to columns of 16 bytes, whatever the
number of channels; each output column is then a sum of such vectors with one weight for all lanes. Results are
transposed back to rows, and sums along columns have adjacent pixels as lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, S16, U8, Element
from cpuconv.isa.typed import clamped, load_as_int, store_float, store_int
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

ROWS = 16  # rows per block, and lanes of all vectors here; LLVM splits them where registers are narrower
_AHEAD = 4  # vectors of a row whose sums share the loads of weights
_MAX_PIXEL = 255
_HALF_BITS, _I16 = 16, ir.VectorType(ir.IntType(16), ROWS)


@dataclass(frozen=True)
class Arithmetic:
    """Fixed-point arithmetic of a resize: s = Σ p·w >> shift along rows, then Σ (s·w >> tap_shift) >> last_shift.

    Attributes
    ----------
    shift, rounded
        Shift of sums along rows, and whether it rounds to nearest.
    wide : bool
        Whether these sums are int16; otherwise they are clipped to uint8.
    tap_shift, last_shift
        Shift of each product along columns, rounding down, and of their sum, to nearest. With a shift of 16, products
        and their sum are int16.
    clipped : bool
        Whether results may be outside of uint8, because weights may be negative.
    """

    shift: int
    rounded: bool
    wide: bool
    tap_shift: int
    last_shift: int
    clipped: bool = True

    @property
    def sums(self) -> Element:
        """Element type of the sums along rows."""
        return S16 if self.wide else U8


PLAIN = Arithmetic(shift=0, rounded=False, wide=False, tap_shift=0, last_shift=0, clipped=False)
"""One tap of weight 1: pixels are copied."""


@dataclass(frozen=True)
class TransposeTile:
    """Element type of the transposition."""

    element: Element


@MicroKernel
def transpose_rows(
    tile: TransposeTile,
    builder: ir.IRBuilder,
    x: Any,
    offsets: Any,
    x_next: Any,
    y: Any,
    y_step: Any,
    y_next: Any,
    count: Any,
) -> None:
    """Transpose 16 rows of `count` >= 16 elements, in blocks of 16 x 16, of which the last one may overlap the others.

    Parameters
    ----------
    offsets
        Address of the 16 byte offsets of the rows from `x` (int64).
    x_next, y_next
        Bytes from an element to the next one in a row, and from a column of 16 rows to the next one.
    y_step
        Bytes between the elements of a column's rows in `y`: `y` has row i of the block at y + i·y_step.
    """
    vec, size = Vector(builder, ROWS), tile.element.bytes
    kind = ir.VectorType(ir.IntType(8 * size), ROWS)
    table = builder.inttoptr(offsets, I64.as_pointer())
    rows = [builder.add(x, builder.load(builder.gep(table, [I64(i)]))) for i in range(ROWS)]
    last = builder.sub(count, I64(ROWS))

    def block(index: Any, _: list[Any]) -> list[Any]:
        first = builder.mul(index, I64(ROWS))
        first = builder.select(builder.icmp_signed("<", first, last), first, last)
        at, values = builder.mul(first, x_next), []
        for row in rows:
            values.append(builder.load(builder.inttoptr(builder.add(row, at), kind.as_pointer())))
            values[-1].align = size
        target = builder.add(y, builder.mul(first, y_next))
        for i, value in enumerate(_transposed(vec, values)):
            place = builder.add(target, builder.mul(y_step, I64(i)))
            builder.store(value, builder.inttoptr(place, kind.as_pointer())).align = size
        return []

    repeat(vec, I64(0), builder.sdiv(builder.add(count, I64(ROWS - 1)), I64(ROWS)), [], block)


def _transposed(vec: Vector, rows: list[Any]) -> list[Any]:
    """Columns of 16 vectors of 16 elements, by four rounds that interleave vectors eight apart."""
    low, high = ([lane for at in half for lane in (at, at + ROWS)] for half in (range(8), range(8, 16)))
    for _ in range(4):
        pairs = zip(rows[:8], rows[8:], strict=True)
        rows = [vec.shuffle(a, b, order) for a, b in pairs for order in (low, high)]
    return rows


@dataclass(frozen=True)
class ColumnsTile:
    """Arithmetic, channels, bytes of a pixel, and taps where they are few (0: any number)."""

    arithmetic: Arithmetic
    channels: int
    pixel: int
    taps: int


@MicroKernel
def sum_columns(
    tile: ColumnsTile,
    builder: ir.IRBuilder,
    x: Any,
    x_channel: Any,
    starts: Any,
    weights: Any,
    taps: Any,
    y: Any,
    y_channel: Any,
    count: Any,
) -> None:
    """y[channel][column] = sum of `taps` columns of x from `starts[column]` bytes on, for 16 rows as lanes.

    `weights` has `taps` int32 per column.
    """
    vec, how = Vector(builder, ROWS), tile.arithmetic
    x, y, weights = (vec.pointer(each) for each in (x, y, weights))
    starts = builder.inttoptr(starts, I64.as_pointer())
    channels = [builder.mul(x_channel, I64(channel)) for channel in range(tile.channels)]

    def column(index: Any, _: list[Any]) -> list[Any]:
        source = vec.offset(x, builder.load(builder.gep(starts, [index])))
        own = vec.offset(weights, builder.mul(index, builder.mul(taps, I64(4))))

        def tap(number: Any, totals: list[Any]) -> list[Any]:
            weight = _weight(vec, own, number)
            place = vec.offset(source, builder.mul(number, I64(tile.pixel * ROWS)))
            read = [load_as_int(vec, U8, vec.offset(place, channel)) for channel in channels]
            return [_added(vec, total, value, weight, 0) for total, value in zip(totals, read, strict=True)]

        totals = _each_tap(vec, tile.taps, taps, [_half(vec, how.shift, how.rounded)] * tile.channels, tap)
        target = vec.offset(y, builder.mul(index, I64(ROWS * how.sums.bytes)))
        for channel, total in enumerate(totals):
            place = vec.offset(target, builder.mul(y_channel, I64(channel)))
            store_int(vec, how.sums, _shifted(vec, total, how.shift), place, fits=how.wide or not how.clipped)
        return []

    repeat(vec, I64(0), count, [], column)


@dataclass(frozen=True)
class RowsTile:
    """Arithmetic, taps where they are few (0: any number), the output's element type, whether its row is contiguous."""

    arithmetic: Arithmetic
    taps: int
    element: Element = F32
    dense: bool = True


@MicroKernel
def sum_rows(
    tile: RowsTile,
    builder: ir.IRBuilder,
    ring: Any,
    slot: Any,
    slots: Any,
    slot_bytes: Any,
    weights: Any,
    taps: Any,
    numbers: Any,
    y: Any,
    y_step: Any,
    count: Any,
) -> None:
    """y[i] = pixel · scale + shift, where pixel is the sum of `taps` rows of a ring, from `slot` on.

    Rows of the ring have 16 pixels or more.

    Parameters
    ----------
    slots, slot_bytes
        Rows in the ring, and bytes from one to the next.
    numbers
        Address of scale and shift (float32).
    y_step
        Bytes between elements of y, where its row is not contiguous.
    """
    vec, how = Vector(builder, ROWS), tile.arithmetic
    weights, y = vec.pointer(weights), vec.pointer(y)
    scale, shift = (vec.broadcast(vec.offset(vec.pointer(numbers), at)) for at in (0, 4))

    def pixels(first: Any, vectors: int, mask: Any = None) -> None:
        start = builder.add(ring, builder.mul(first, I64(how.sums.bytes)))

        def tap(number: Any, totals: list[Any]) -> list[Any]:
            place = builder.add(slot, number)
            wrapped = builder.sub(place, slots)
            place = builder.select(builder.icmp_signed("<", wrapped, I64(0)), place, wrapped)
            source = vec.pointer(builder.add(start, builder.mul(place, slot_bytes)))
            weight = _weight(vec, weights, number)
            read = [load_as_int(vec, how.sums, vec.offset(source, how.sums.bytes * ROWS * i)) for i in range(vectors)]
            if how.tap_shift == _HALF_BITS:  # one instruction on many CPUs
                weight = builder.sext(builder.trunc(weight, _I16), vec.int_type)
                products = [builder.ashr(builder.mul(value, weight), vec.int_constant(_HALF_BITS)) for value in read]
                pairs = zip(totals, products, strict=True)
                return [builder.add(total, builder.trunc(product, _I16)) for total, product in pairs]
            return [_added(vec, total, value, weight, how.tap_shift) for total, value in zip(totals, read, strict=True)]

        half = _half(vec, how.last_shift, True)
        half = builder.trunc(half, _I16) if how.tap_shift == _HALF_BITS else half
        totals = _each_tap(vec, tile.taps, taps, [half] * vectors, tap)
        for i, total in enumerate(totals):
            total = builder.sext(total, vec.int_type) if how.tap_shift == _HALF_BITS else total
            pixel = _shifted(vec, total, how.last_shift)
            pixel = clamped(vec, pixel, 0, _MAX_PIXEL) if how.clipped else pixel
            value = vec.fma(builder.sitofp(pixel, vec.type), scale, shift)
            _store(tile, vec, value, y, y_step, builder.add(first, I64(ROWS * i)), mask)

    def blocks(number: Any, _: list[Any]) -> list[Any]:
        pixels(builder.mul(number, I64(ROWS * _AHEAD)), _AHEAD)
        return []

    def rest(number: Any, _: list[Any]) -> list[Any]:
        first, last = builder.mul(number, I64(ROWS)), builder.sub(count, I64(ROWS))
        first = builder.select(builder.icmp_signed("<", first, last), first, last)
        pixels(builder.select(builder.icmp_signed(">", first, I64(0)), first, I64(0)), 1, first_lanes(vec, count))
        return []

    wide = builder.sdiv(count, I64(ROWS * _AHEAD))
    repeat(vec, I64(0), wide, [], blocks)
    ends = builder.sdiv(builder.add(count, I64(ROWS - 1)), I64(ROWS))
    repeat(vec, builder.mul(wide, I64(_AHEAD)), ends, [], rest)


@MicroKernel
def fill_row(tile: RowsTile, builder: ir.IRBuilder, number: Any, y: Any, y_step: Any, count: Any) -> None:
    """y[i] = the float32 at `number`."""
    vec = Vector(builder, ROWS)
    value = vec.broadcast(vec.pointer(number))

    def part(number: Any, _: list[Any]) -> list[Any]:
        first = builder.mul(number, I64(ROWS))
        _store(tile, vec, value, vec.pointer(y), y_step, first, first_lanes(vec, builder.sub(count, first)))
        return []

    repeat(vec, I64(0), builder.sdiv(builder.add(count, I64(ROWS - 1)), I64(ROWS)), [], part)


def _store(tile: RowsTile, vec: Vector, value: Any, y: Any, y_step: Any, first: Any, mask: Any) -> None:
    """Store a vector of pixels from number `first` on; `mask` has the lanes that exist, None: all."""
    builder, element = vec.builder, tile.element
    if element.integer:
        ends = np.iinfo(element.dtype)
        value = vec.round(vec.clip(value, float(ends.min), float(ends.max)))
    if tile.dense:
        store_float(vec, element, value, vec.offset(y, builder.mul(first, I64(element.bytes))), mask)
        return
    single = Vector(builder, 1)
    for lane in range(ROWS):
        place = vec.offset(y, builder.mul(builder.add(first, I64(lane)), y_step))
        there = builder.icmp_signed("==", I64(0), I64(0)) if mask is None else builder.extract_element(mask, I32(lane))
        with builder.if_then(there):
            store_float(single, element, builder.extract_element(value, I32(lane)), place)


# --- parts of sums ---------------------------------------------------------------------------------------------------


def _each_tap(vec: Vector, few: int, taps: Any, totals: list[Any], tap: Callable[[Any, list[Any]], list[Any]]) -> Any:
    """Emit the taps of a sum: `few` of them unrolled, or a loop over `taps`."""
    if not few:
        return repeat(vec, I64(0), taps, totals, tap)
    for number in range(few):
        totals = tap(I64(number), totals)
    return totals


def _weight(vec: Vector, weights: Any, number: Any) -> Any:
    place = vec.offset(weights, vec.builder.mul(number, I64(4)))
    return vec.splat(vec.builder.load(vec.builder.bitcast(place, I32.as_pointer())))


def _added(vec: Vector, total: Any, value: Any, weight: Any, shift: int) -> Any:
    return vec.builder.add(total, _shifted(vec, vec.builder.mul(value, weight), shift))


def _shifted(vec: Vector, value: Any, shift: int) -> Any:
    return vec.builder.ashr(value, vec.int_constant(shift)) if shift else value


def _half(vec: Vector, shift: int, rounded: bool) -> Any:
    """What rounds a sum to nearest before it is shifted."""
    return vec.int_constant(1 << (shift - 1) if rounded and shift else 0)
