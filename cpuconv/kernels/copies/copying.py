"""Copies: the elements of one place written to another, whatever the order of their axes.

Axes along which both places go on as one are joined. Of what is left, the two innermost make a plane, which is copied
by runs of bytes that lie side by side in both, by transpositions in registers where each side has another axis side by
side, or element by element. The other axes are walked. A source may run backwards or stand still.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.following.sizes import greatest, least, now, sizes_array
from cpuconv.isa.vector import F32, I64, Vector
from cpuconv.kernels.binding.place import Place, image_shape
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.copies.rows import ROWS, RowTile, pack_vectors, unpack_vectors
from cpuconv.kernels.copies.transposing import transpose_step
from cpuconv.kernels.emit.intrinsics import emitter, word
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.described import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel

RUNS, COLUMNS, LINES, ZIP, UNZIP, ELEMENTS = range(6)
"""How a plane is copied: row by row in bytes; transposed by vectors that run down its columns, or along its rows; a few
lines interleaved, or told apart; element by element."""

_QUAD = 16  # bytes that are moved at once at the ends of runs, and the largest element
SHORTEST_RUN = _QUAD
_ELEMENTS = (1, 2, 4, 8, _QUAD)
_FEW = 4  # lines that are interleaved; more of them are transposed
_MANY = 8  # planes of a unit; along a shorter axis there are too few for what a unit costs
_UNIT = 1 << 15  # bytes of a unit of work, where planes allow
_STRETCH = 64  # pixels of a transposition, for all lines: few pages and cache lines are open at a time


@dataclass(frozen=True)
class CopyTile:
    """How a plane is copied.

    Attributes
    ----------
    lanes : int
        Floats of a vector.
    mode : int
    size : int
        Bytes of an element, or of the elements that interleaved lines have side by side.
    """

    lanes: int
    mode: int
    size: int

    @property
    def line(self) -> RowTile:
        """Vectors from or to rows of floats."""
        return RowTile(self.lanes, ROWS)


class Axis(NamedTuple):
    """An axis of both places: elements, and bytes from one to the next."""

    size: int
    x: int
    y: int


_ONE = Axis(1, 0, 0)


# --- the kernel -----------------------------------------------------------------------------------------------------


@emitter
def _copy_vector(tile: Any, vec: Vector, source: Any, processor: Any) -> None:
    """Copy the bytes of a vector, which may lie on any address."""
    vec.store(vec.load(vec.pointer(source), align=1), vec.pointer(processor), align=1)


@emitter
def _copy_quad(tile: Any, vec: Vector, source: Any, processor: Any) -> None:
    """Copy 16 bytes, which may lie on any address."""
    quad = Vector(vec.builder, _QUAD // 4)
    quad.store(quad.load(quad.pointer(source), align=1), quad.pointer(processor), align=1)


@emitter
def _copy_element(tile: Any, vec: Vector, source: Any, processor: Any) -> None:
    """Copy `tile.size` bytes, which may lie on any address."""
    kind = (F32 if tile.size == 4 else ir.IntType(8 * tile.size)).as_pointer()
    value = vec.builder.load(vec.builder.inttoptr(source, kind))
    value.align = 1
    vec.builder.store(value, vec.builder.inttoptr(processor, kind)).align = 1


def picked(vec: Vector, value: Any, vectors: Sequence[Any], places: Sequence[int]) -> Any:
    """The floats at these places of the vectors, side by side; `value` in lanes with a place in none."""
    for number, other in enumerate(vectors):
        here = [place - number * vec.lanes for place in places]
        mask = [vec.lanes + at if 0 <= at < vec.lanes else lane for lane, at in enumerate(here)]
        value = vec.shuffle(value, other, mask)
    return value


@emitter
def _zip(tile: Any, vec: Vector, source: Any, step: Any, processor: Any) -> None:
    """`lanes` floats of each of a few lines, `step` bytes apart: first all first ones, then all second ones, ..."""
    lines, source, processor = tile.size // 4, vec.pointer(source), vec.pointer(processor)
    vectors = [vec.load(vec.offset(source, vec.builder.mul(step, I64(i)))) for i in range(lines)]
    for first in range(0, lines * vec.lanes, vec.lanes):
        places = [at % lines * vec.lanes + at // lines for at in range(first, first + vec.lanes)]
        vec.store(picked(vec, vectors[0], vectors, places), vec.offset(processor, 4 * first))


@emitter
def _unzip(tile: Any, vec: Vector, source: Any, processor: Any, step: Any) -> None:
    """The reverse."""
    lines, source, processor = tile.size // 4, vec.pointer(source), vec.pointer(processor)
    vectors = [vec.load(vec.offset(source, vec.size * i)) for i in range(lines)]
    for line in range(lines):
        value = picked(vec, vectors[0], vectors, [lane * lines + line for lane in range(vec.lanes)])
        vec.store(value, vec.offset(processor, vec.builder.mul(step, I64(line))))


@inline
def copy_run(tile, x, y, size):
    """Copy `size` bytes, `SHORTEST_RUN` at least; the last vector overlaps the one before."""
    step = 4 * tile.lanes
    if size >= step:
        for at in range(0, size - step, step):
            _copy_vector(tile, x + at, y + at)
        _copy_vector(tile, x + size - step, y + size - step)
    else:
        for at in range(0, size - 16, 16):
            _copy_quad(tile, x + at, y + at)
        _copy_quad(tile, x + size - 16, y + size - 16)


def _plane_of_runs(tile, args, x, y, row, rows, column, columns):
    x += row * args.x_row + column
    y += row * args.y_row + column
    for _ in range(rows):
        copy_run(tile, x, y, columns)
        x += args.x_row
        y += args.y_row


def _plane_of_columns(tile, args, x, y, row, rows, column, columns):
    x += row * 4
    y += row * args.y_row
    for first in range(column, column + columns, tile.lanes):
        at = min(first, args.columns - tile.lanes)  # the last vectors overlap the ones before
        pack_vectors(
            tile.line, x + at * args.x_column, 0, tile.lanes, 1, args.x_column, 0, 4, y + 4 * at, args.y_row, rows
        )


def _plane_of_lines(tile, args, x, y, row, rows, column, columns):
    x += column * args.x_column
    y += column * 4
    for first in range(row, row + rows, tile.lanes):
        at = min(first, args.rows - tile.lanes)
        unpack_vectors(
            tile.line, x + 4 * at, args.x_column, 0, tile.lanes, 1, args.y_row, 0, 4, y + at * args.y_row, columns
        )


def _plane_of_zips(tile, args, x, y, row, rows, column, columns):
    for first in range(row, row + rows, tile.lanes):
        at = min(first, args.rows - tile.lanes)
        _zip(tile, x + 4 * at, args.x_column, y + at * args.y_row)


def _plane_of_unzips(tile, args, x, y, row, rows, column, columns):
    for first in range(column, column + columns, tile.lanes):
        at = min(first, args.columns - tile.lanes)
        _unzip(tile, x + at * args.x_column, y + 4 * at, args.y_row)


def _plane_of_elements(tile, args, x, y, row, rows, column, columns):
    x += row * args.x_row + column * args.x_column
    y += row * args.y_row + column * args.y_column
    for _ in range(rows):
        for i in range(columns):
            _copy_element(tile, x + i * args.x_column, y + i * args.y_column)
        x += args.x_row
        y += args.y_row


_PLANES = {
    RUNS: _plane_of_runs,
    COLUMNS: _plane_of_columns,
    LINES: _plane_of_lines,
    ZIP: _plane_of_zips,
    UNZIP: _plane_of_unzips,
    ELEMENTS: _plane_of_elements,
}


@specialise_on_tile(lambda tile: _PLANES[tile.mode])
def _copy_plane(tile, args, x, y, row, rows, column, columns):
    """Rows and columns from `row` and `column` on of the plane at `x` to the one at `y`."""


@kernel(
    "x y units outer axes table y_table planes rows columns plane_step row_step column_step "
    "plane_parts row_parts column_parts x_plane x_row x_column y_plane y_row y_column"
)
def copy(tile, worker, before, part, parts, args):
    """y = x by planes of rows and columns, cut into parts of so many planes, rows and columns (`…_step`).

    `outer` is the address of (size, x stride, y stride) of each of so many outer `axes`, fastest last. With a `table`,
    of byte offsets into x, one more axis is walked before them all.
    """
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        column = unit % args.column_parts * args.column_step
        rest = unit // args.column_parts
        row = rest % args.row_parts * args.row_step
        rest = rest // args.row_parts
        plane = rest % args.plane_parts * args.plane_step
        rest = rest // args.plane_parts
        x, y = args.x + plane * args.x_plane, args.y + plane * args.y_plane
        for axis in range(args.axes - 1, -1, -1):
            size = word(tile, args.outer, 3 * axis)
            index = rest % size
            rest = rest // size
            x += index * word(tile, args.outer, 3 * axis + 1)
            y += index * word(tile, args.outer, 3 * axis + 2)
        if args.table != 0:
            x += word(tile, args.table, rest)
            y += rest * args.y_table
        rows = min(args.row_step, args.rows - row)
        columns = min(args.column_step, args.columns - column)
        for _ in range(min(args.plane_step, args.planes - plane)):
            _copy_plane(tile, args, x, y, row, rows, column, columns)
            x += args.x_plane
            y += args.y_plane


# --- how the work is cut --------------------------------------------------------------------------------------------


def joined(axes: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The axes (size, strides in bytes of one or more places), those that go on as one in all places joined."""
    kept: list[tuple[int, ...]] = []
    for size, *steps in axes:
        if size == 1:
            continue
        if kept and all(outer == size * inner for outer, inner in zip(kept[-1][1:], steps, strict=True)):
            kept[-1] = (kept[-1][0] * size, *steps)
        else:
            kept.append((size, *steps))
    return kept


def _plane(axes: list[Axis], size: int, lanes: int) -> tuple[CopyTile, list[Axis]]:
    """How planes are copied, and all axes, those of a plane last; columns are bytes where they are copied so."""
    *outer, columns = axes or [_ONE]
    if columns.x == columns.y == size and columns.size * size in _ELEMENTS:  # a short run is an element
        size *= columns.size
        *outer, columns = outer or [_ONE]
    if columns.x == columns.y == size and columns.size * size > _QUAD:
        return CopyTile(lanes, RUNS, 1), [*outer, Axis(columns.size * size, 1, 1)]
    beside = [axis for axis in outer if axis.x == size == 4 == columns.y]
    if beside and max(columns.size, beside[0].size) >= 4:
        rows = beside[0]
        outer = [axis for axis in outer if axis is not rows]  # equal sizes are another axis
        few, many = sorted((rows.size, columns.size))
        lanes = max(wide for wide in (4, 8, lanes) if wide <= min(lanes, many))
        mode = COLUMNS if columns.size >= lanes else LINES
        if few <= _FEW and columns.x == 4 * few == 4 * rows.size:
            mode = UNZIP
        elif few <= _FEW and rows.y == 4 * few == 4 * columns.size:
            mode = ZIP
        return CopyTile(lanes, mode, 4 * few if mode in (ZIP, UNZIP) else 4), [*outer, rows, columns]
    return CopyTile(lanes, ELEMENTS, size), [*outer, columns]


def _cut(tile: CopyTile, planes: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Planes, rows and columns of a unit: whole vectors where elements change their order."""
    size, vector = (1, 1) if tile.mode == RUNS else (tile.size, 1) if tile.mode == ELEMENTS else (4, tile.lanes)
    if tile.mode == UNZIP:  # a vector holds elements of all lines
        row_step = rows
    elif tile.mode in (COLUMNS, LINES):
        row_step = divide(rows, divide(rows, _STRETCH))
    else:
        row_step = least(rows, _whole(_UNIT // (size * columns), vector))
    column_step = least(columns, _whole(_UNIT // (size * row_step), vector))
    return greatest(1, least(planes, _UNIT // (size * row_step * column_step))), row_step, column_step


def _whole(most: int, step: int) -> int:
    """The largest multiple of `step` up to `most`, or `step`."""
    return greatest(step, most - most % step)


def copy_step(processor: Processor, x: Place, y: Place, table: np.ndarray | None = None) -> Step:
    """One call that copies a plain place to another of the same shape, neither of which is empty.

    Parameters
    ----------
    processor : Processor
    x, y : Place
        Any strides; those of `y` are positive, and its elements do not overlap.
    table : np.ndarray or None
        Where given, element i of the first axis is read at ``x.ref + table[i]`` bytes, instead of by the first stride.
    """
    axes = [Axis(*axis) for axis in zip(x.shape, x.strides, y.strides, strict=True)]
    size = x.dtype.itemsize
    first, axes = (axes[0], axes[1:]) if table is not None else (_ONE, axes)
    ordered = sorted((axis for axis in axes if axis.size > 1), key=lambda axis: -axis.y)
    tile, walked = _plane([Axis(*axis) for axis in joined(ordered)], size, processor.isa.lanes)
    walked = [_ONE, _ONE, _ONE, *walked]
    outer, (rows, columns) = walked[:-2], walked[-2:]
    planes = outer.pop(next((at for at in reversed(range(len(outer))) if now(outer[at].size) >= _MANY), -1))
    steps = _cut(tile, planes.size, rows.size, columns.size)
    args: Args = {
        "x": x.ref,
        "y": y.ref,
        "outer": sizes_array(each for axis in outer for each in axis),
        "axes": len(outer),
        "table": 0 if table is None else np.ascontiguousarray(table, np.int64),
        "y_table": first.y,
    }
    units = first.size * math.prod(axis.size for axis in outer)
    for name, axis, step in zip(("plane", "row", "column"), (planes, rows, columns), steps, strict=True):
        parts = divide(axis.size, step)
        units *= parts
        args |= {f"{name}s": axis.size, f"{name}_step": step, f"{name}_parts": parts}
        args |= {f"x_{name}": axis.x, f"y_{name}": axis.y}
    args["units"] = units
    return Step(copy, tile, args, processor.parts(2 * size * math.prod(y.shape)))


def physical(place: Place) -> Place:
    """The memory of a place as a plain place: of a blocked one, all lanes."""
    return replace(place, shape=place.physical, block=1, array=None)


def copy_steps(processor: Processor, space: Space, x: Place, y: Place) -> list[Step]:
    """The calls that write the elements of one place to another of the same shape, whichever way each of them lies."""
    if 0 in x.shape:
        return []
    if x.block == y.block:
        return [copy_step(processor, physical(x), physical(y))]
    step = transpose_step(
        processor.isa, space, image_shape(x.shape), x.operand, y.operand, processor.threads, x.element
    )
    return [replace(step, parts=processor.parts(x.size + y.size))]
