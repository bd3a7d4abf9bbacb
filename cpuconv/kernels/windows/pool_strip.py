"""Micro-kernel of pooling: a strip, which is a tile of adjacent outputs of a row.

It first reduces the input rows under the windows, in a loop over the rows inside the input. In channel blocks, a column
of the strip is a vector; spans of two, four, eight … columns serve all windows that contain them. In dense planes, a
vector has adjacent columns; for each tap, shuffles take the columns of a vector of outputs. Columns outside the input
are the neutral element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.typed import load_as_float, store_float
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.copies.copying import picked
from cpuconv.kernels.elementwise.halves import half_emitter
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.windows.planes import store_nearest
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

_NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}


@dataclass(frozen=True)
class StripTile:
    """A strip: its outputs, and whether their windows may overlap padding at either end.

    It computes in float32, extremes of float16 in channel blocks in float16; a pixel of narrow elements may be several
    vectors. `dense`: lanes are outputs, not channels, and rows under a window are unrolled if there are `rows` of them.
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
    dense: bool = False
    rows: int = 0

    @property
    def vector_lanes(self) -> int:
        """Lanes per vector."""
        return min(self.lanes, self.outputs) if self.dense else self.lanes

    @property
    def reach(self) -> int:
        """Columns from the first tap of a window to its last."""
        return (self.taps - 1) * self.dilation

    @property
    def columns(self) -> list[int]:
        """Columns under the windows; in dense planes, the first one of each vector, the last of which may overlap."""
        if self.dense:
            starts = range(0, self.input_columns, self.vector_lanes)
            return [min(at, self.input_columns - self.vector_lanes) for at in starts]
        steps = range(0, self.taps * self.dilation, self.dilation)
        return sorted({output * self.stride + step for output in range(self.outputs) for step in steps})

    @property
    def input_columns(self) -> int:
        """Columns from the first to the last one under the windows."""
        return (self.outputs - 1) * self.stride + self.reach + 1

    def may_be_missing(self, column: int) -> bool:
        """Whether a column may be outside of the input; each window has at least one inside."""
        return self.edged and not self.reach <= column < self.input_columns - self.reach


@MicroKernel
def pool_strip(
    tile: StripTile,
    builder: ir.IRBuilder,
    x: Any,
    line: Any,
    rows: Any,
    count: Any,
    y: Any,
    y_line: Any,
    factors: Any,
    first: Any,
    last: Any,
    outputs: Any,
) -> None:
    """Compute the outputs of a strip, in several rows if planes are dense.

    Parameters
    ----------
    x, line
        Address of the first window's first column, padding included, in the plane's first row; byte stride of the rows
        under a window.
    rows, count
        Address of three int64 words for each output row, and their number: byte offset of the first row under the
        window, number of such rows, and byte offset of the factors.
    y, y_line
        Address of the first output, and byte stride to the next row of outputs.
    factors
        Address of the factor of each output, each followed by the addend, if any.
    first, last
        Range of existing columns, counted from the first window's (`edged` only).
    outputs
        Number of outputs that exist (`dense` and `edged` only).
    """
    vec, table = Vector(builder, tile.vector_lanes), builder.inttoptr(rows, I64.as_pointer())

    def words(number: Any) -> tuple[Any, Any, Any]:
        """Address and number of the first rows under the windows of a row of outputs, and address of its factors."""
        entry = builder.mul(number, I64(3))
        start, seen, factor = (builder.load(builder.gep(table, [builder.add(entry, I64(at))])) for at in range(3))
        return builder.add(x, start), seen, vec.pointer(builder.add(factors, factor))

    if tile.dense:
        masks = _masks(tile, vec, I64(0), outputs, range(0, tile.outputs, vec.lanes))
        load = _load_dense(tile, vec, first, last)

        def row(number: Any, _: list[Any]) -> list[Any]:
            source, seen, own = words(number)
            values = _fold_dense(tile, vec, _fold_window_rows(tile, vec, source, line, seen, load))
            _store_dense(tile, vec, values, vec.pointer(builder.add(y, builder.mul(number, y_line))), own, masks)
            return []

        repeat(vec, I64(0), count, [], row)
        return
    vec = half_emitter(vec, tile.element, tile.fold != "sum")
    source, seen, own = words(I64(0))
    for piece in range(0, vec.size, vec.lanes * tile.element.bytes):
        folded = _fold_rows(tile, vec, source, line, seen, _load_pixels(tile, vec, piece, first, last))
        _emit_pixels(tile, vec, piece, folded, vec.pointer(y), own)


Load = Callable[[Any, int], Any]  # emits the load of a column (dense: a vector of columns) of a row


def _fold_rows(tile: StripTile, vec: Vector, x: Any, line: Any, rows: Any, load: Load) -> list[Any]:
    """Emit the reduction of `rows` rows, a number or an LLVM value: a vector for each of `tile.columns`."""
    builder, fold = vec.builder, FOLDS[tile.fold]

    def row(index: Any) -> list[Any]:
        start = vec.pointer(builder.add(x, builder.mul(index, line)))
        return [load(start, column) for column in tile.columns]

    def further(index: Any, values: list[Any]) -> list[Any]:
        return [fold(vec, value, seen) for value, seen in zip(values, row(index), strict=True)]

    values = row(I64(0))
    if not isinstance(rows, int):
        return repeat(vec, I64(1), rows, values, further)
    for index in range(1, rows):
        values = further(I64(index), values)
    return values


def _fold_window_rows(tile: StripTile, vec: Vector, x: Any, line: Any, rows: Any, load: Load) -> list[Any]:
    """`_fold_rows`, unrolled if all rows of the window are there."""
    if not tile.rows:
        return _fold_rows(tile, vec, x, line, rows, load)
    builder, made = vec.builder, []
    with builder.if_else(builder.icmp_signed("==", rows, I64(tile.rows)), likely=True) as branches:
        for branch, count in zip(branches, (tile.rows, rows), strict=True):
            with branch:
                made.append((_fold_rows(tile, vec, x, line, count, load), builder.block))
    values = []
    for pair in zip(*(folded for folded, _ in made), strict=True):
        values.append(builder.phi(vec.type))
        for value, (_, block) in zip(pair, made, strict=True):
            values[-1].add_incoming(value, block)
    return values


def _load_pixels(tile: StripTile, vec: Vector, piece: int, first: Any, last: Any) -> Load:
    """Loads of the vectors at byte offset `piece` of pixels in channel blocks."""
    builder, element, size = vec.builder, tile.element, I64(vec.size)
    neutral = vec.constant(_NEUTRAL[tile.fold])
    exists = {
        column: builder.and_(builder.icmp_signed("<=", first, I64(column)), builder.icmp_signed("<", I64(column), last))
        for column in tile.columns
        if tile.may_be_missing(column)
    }

    def load(start: Any, column: int) -> Any:
        if column not in exists:
            return load_as_float(vec, element, vec.offset(start, column * vec.size + piece))
        there = builder.mul(builder.select(exists[column], I64(column), first), size)
        value = load_as_float(vec, element, vec.offset(vec.offset(start, there), piece))
        return builder.select(exists[column], value, neutral)

    return load


def _masks(tile: StripTile, vec: Vector, first: Any, last: Any, places: Sequence[int]) -> dict[int, Any]:
    """Masks of the lanes from `first` to before `last`, by the number of their vector's first lane; of edges only."""
    builder, masks = vec.builder, {}
    low, high = (vec.splat(builder.trunc(end, I32)) for end in (first, last))
    for place in places if tile.edged else ():
        lanes = ir.Constant(vec.int_type, [place + lane for lane in range(vec.lanes)])
        within = builder.icmp_signed("<=", low, lanes), builder.icmp_signed("<", lanes, high)
        masks[place] = builder.and_(*within)
    return masks


def _load_dense(tile: StripTile, vec: Vector, first: Any, last: Any) -> Load:
    """Loads of vectors of adjacent columns."""
    masks, neutral = _masks(tile, vec, first, last, tile.columns), vec.constant(_NEUTRAL[tile.fold])

    def load(start: Any, column: int) -> Any:
        mask = masks.get(column)
        value = load_as_float(vec, tile.element, vec.offset(start, column * tile.element.bytes), mask)
        return value if mask is None or tile.fold == "sum" else vec.builder.select(mask, value, neutral)

    return load


def _fold_dense(tile: StripTile, vec: Vector, vectors: list[Any]) -> list[Any]:
    """Emit the reduction of columns to vectors of outputs."""
    columns, lanes, fold = tile.columns, vec.lanes, FOLDS[tile.fold]

    def place(column: int) -> int:
        """Lane of a column in the concatenated vectors."""
        number = min(column // lanes, len(columns) - 1)
        return number * lanes + column - columns[number]

    values = []
    for first in range(0, tile.outputs, lanes):
        value = None
        for tap in range(0, tile.taps * tile.dilation, tile.dilation):
            places = [place(output * tile.stride + tap) for output in range(first, first + lanes)]
            taken = picked(vec, vectors[places[0] // lanes], vectors, places)
            value = taken if value is None else fold(vec, value, taken)
        values.append(value)
    return values


def _store_dense(tile: StripTile, vec: Vector, values: list[Any], y: Any, factors: Any, masks: dict[int, Any]) -> None:
    """Emit the stores of vectors of outputs, multiplied by their factors."""
    for at, value in zip(range(0, tile.outputs, vec.lanes), values, strict=True):
        mask = masks.get(at)
        if tile.scaled:
            value = vec.mul(value, load_as_float(vec, F32, vec.offset(factors, F32.bytes * at), mask))
        store_float(vec, tile.element, value, vec.offset(y, tile.element.bytes * at), mask)


def _emit_pixels(tile: StripTile, vec: Vector, piece: int, folded: list[Any], y: Any, factors: Any) -> None:
    """Emit the reduction of columns, and the vectors of the outputs at byte offset `piece` of their pixels."""
    fold, element = FOLDS[tile.fold], tile.element
    spans = {(column, 1): value for column, value in zip(tile.columns, folded, strict=True)}

    def span(first: int, count: int) -> Any:
        """Reduce `count` columns: the greatest power of two of them first, then the rest."""
        if (first, count) not in spans:
            half = 1 << (count - 1).bit_length() - 1
            spans[first, count] = fold(vec, span(first, half), span(first + half * tile.dilation, count - half))
        return spans[first, count]

    entry = factor_bytes(tile.shifted)
    for output in range(tile.outputs):
        value = span(output * tile.stride, tile.taps)
        if tile.scaled:
            value = vec.mul(value, vec.broadcast(vec.offset(factors, entry * output)))
        if tile.shifted:
            value = vec.add(value, vec.broadcast(vec.offset(factors, entry * output + F32.bytes)))
        (store_nearest if tile.shifted else store_float)(vec, element, value, vec.offset(y, output * vec.size + piece))


def factor_bytes(shifted: bool) -> int:
    """Bytes per output in `factors`: a factor, and an addend if `shifted`."""
    return 2 * F32.bytes if shifted else F32.bytes
