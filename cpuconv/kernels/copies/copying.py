"""Copies by planes, between views with equal axes in any order.

The two innermost of the merged axes form a plane. It is copied in runs of bytes where both views are contiguous along
the same axis. Where each is contiguous along another axis, it is transposed in registers; else it is copied element by
element. The outer axes are loops. Strides of the source may be negative or zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.copies.movement import COSTS, LINE, ONE, OPEN, Axis, Strided, count_l1_sets, ordered
from cpuconv.kernels.copies.rows import ROWS, RowTile, pack_vectors
from cpuconv.kernels.copies.unaligned import copy_quad, copy_unaligned, copy_word
from cpuconv.kernels.emit.intrinsics import emitter, word
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.symbolic.sizes import greatest, least, now, sizes_array

RUNS, COLUMNS, ZIP, UNZIP, ELEMENTS = range(5)
"""How a plane is copied: rows as bytes; transposed by vectors of its columns; a few lines interleaved, or
deinterleaved; element by element."""

_QUAD = 16  # bytes per move at the ends of runs, and of the largest element
SHORTEST_RUN = _QUAD
_ELEMENTS = (1, 2, 4, 8, _QUAD)
_FEW = 4  # maximum lines that are interleaved; more of them are transposed
_MANY = 8  # minimum planes of a unit; a shorter axis does not repay the overhead of a unit
_UNIT = 1 << 15  # bytes per unit of work, where planes allow
_STRETCH = 64  # pixels of all lines per transposition: few pages and cache lines are open at a time
_COSTS = {RUNS: 1.0, ZIP: 3.0, UNZIP: 3.0}  # cycles per cache line
_TRANSPOSED = COSTS.vector - 0.25  # where many rows of the target share few sets, their cache lines are evicted
_SHORT = 8  # columns: vectors of that many lanes transpose them faster, if there are enough rows


@dataclass(frozen=True)
class CopyTile:
    """Tile of the copy kernel: the method for a plane.

    Attributes
    ----------
    lanes : int
        float32 lanes per vector.
    mode : int
    size : int
        Bytes per element, or per group of elements that interleaving makes contiguous.
    element : int
        Bytes per element that is transposed or interleaved.
    """

    lanes: int
    mode: int
    size: int
    element: int = 4

    @property
    def across(self) -> int:
        """Elements per vector."""
        return 4 * self.lanes // self.element

    @property
    def word(self) -> int:
        """Bytes per move of an element."""
        return self.size

    @property
    def line(self) -> RowTile:
        """Loop that packs vectors from rows of 32-bit elements."""
        return RowTile(self.lanes, ROWS)


# --- the kernel -----------------------------------------------------------------------------------------------------


def picked(vec: Vector, value: Any, vectors: Sequence[Any], places: Sequence[int]) -> Any:
    """Gather the lanes `places` of the concatenated vectors into one; lanes whose place is in none keep `value`."""
    for number, other in enumerate(vectors):
        here = [place - number * vec.lanes for place in places]
        mask = [vec.lanes + at if 0 <= at < vec.lanes else lane for lane, at in enumerate(here)]
        value = vec.shuffle(value, other, mask)
    return value


@emitter
def _zip(tile: Any, vec: Vector, source: Any, step: Any, target: Any) -> None:
    """Interleave a vector of each of a few lines, `step` bytes apart: first all first elements, …"""
    lines, wide = tile.size // tile.element, Vector(vec.builder, tile.across)
    source, target = vec.pointer(source), vec.pointer(target)
    places = [vec.offset(source, vec.builder.mul(step, I64(i))) for i in range(lines)]
    vectors = [vec.builder.load(_elements(tile, vec, place), align=tile.element) for place in places]
    for first in range(0, lines * tile.across, tile.across):
        taken = [at % lines * tile.across + at // lines for at in range(first, first + tile.across)]
        value = picked(wide, vectors[0], vectors, taken)
        vec.builder.store(value, _elements(tile, vec, vec.offset(target, tile.element * first)), align=tile.element)


@emitter
def _unzip(tile: Any, vec: Vector, source: Any, target: Any, step: Any) -> None:
    """Deinterleave: the reverse of `_zip`."""
    lines, wide = tile.size // tile.element, Vector(vec.builder, tile.across)
    source, target = vec.pointer(source), vec.pointer(target)
    places = [vec.offset(source, vec.size * i) for i in range(lines)]
    vectors = [vec.builder.load(_elements(tile, vec, place), align=tile.element) for place in places]
    for line in range(lines):
        value = picked(wide, vectors[0], vectors, [at * lines + line for at in range(tile.across)])
        place = vec.offset(target, vec.builder.mul(step, I64(line)))
        vec.builder.store(value, _elements(tile, vec, place), align=tile.element)


def _elements(tile: Any, vec: Vector, address: Any) -> Any:
    """Pointer to a vector of the tile's elements."""
    kind = ir.VectorType(ir.IntType(8 * tile.element), tile.across)
    return vec.builder.bitcast(address, kind.as_pointer())


@inline
def copy_run(tile, x, y, size):
    """Copy `size` bytes, at least `SHORTEST_RUN`; the last vector overlaps the one before."""
    step = 4 * tile.lanes
    if size >= step:
        for at in range(0, size - step, step):
            copy_unaligned(tile, x + at, y + at)
        copy_unaligned(tile, x + size - step, y + size - step)
    else:
        for at in range(0, size - 16, 16):
            copy_quad(tile, x + at, y + at)
        copy_quad(tile, x + size - 16, y + size - 16)


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


def _plane_of_zips(tile, args, x, y, row, rows, column, columns):
    for first in range(row, row + rows, tile.across):
        at = min(first, args.rows - tile.across)
        _zip(tile, x + tile.element * at, args.x_column, y + at * args.y_row)


def _plane_of_unzips(tile, args, x, y, row, rows, column, columns):
    for first in range(column, column + columns, tile.across):
        at = min(first, args.columns - tile.across)
        _unzip(tile, x + at * args.x_column, y + tile.element * at, args.y_row)


def _plane_of_elements(tile, args, x, y, row, rows, column, columns):
    x += row * args.x_row + column * args.x_column
    y += row * args.y_row + column * args.y_column
    for _ in range(rows):
        for i in range(columns):
            copy_word(tile, x + i * args.x_column, y + i * args.y_column)
        x += args.x_row
        y += args.y_row


_PLANES = {
    RUNS: _plane_of_runs,
    COLUMNS: _plane_of_columns,
    ZIP: _plane_of_zips,
    UNZIP: _plane_of_unzips,
    ELEMENTS: _plane_of_elements,
}


@specialise_on_tile(lambda tile: _PLANES[tile.mode])
def _copy_plane(tile, args, x, y, row, rows, column, columns):
    """Copy the rows and columns from `row` and `column` on of the plane at `x` to the plane at `y`."""


@kernel(
    "x y units outer axes table planes rows columns plane_step row_step column_step "
    "plane_parts row_parts column_parts x_plane x_row x_column y_plane y_row y_column"
)
def copy(tile, worker, before, part, parts, args):
    """y = x by planes of rows and columns, cut into parts of `…_step` planes, rows and columns.

    `outer` is the address of (size, x stride, y stride) of each of the `axes` outer axes, fastest last. With a `table`,
    it has the byte offset of each plane in x.
    """
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        column = unit % args.column_parts * args.column_step
        rest = unit // args.column_parts
        row = rest % args.row_parts * args.row_step
        rest = rest // args.row_parts
        plane = rest % args.plane_parts * args.plane_step
        rest = rest // args.plane_parts
        x, y = args.x, args.y
        for axis in range(args.axes - 1, -1, -1):
            size = word(tile, args.outer, 3 * axis)
            index = rest % size
            rest = rest // size
            x += index * word(tile, args.outer, 3 * axis + 1)
            y += index * word(tile, args.outer, 3 * axis + 2)
        rows = min(args.row_step, args.rows - row)
        columns = min(args.column_step, args.columns - column)
        for at in range(plane, min(plane + args.plane_step, args.planes)):
            offset = word(tile, args.table, at) if args.table != 0 else at * args.x_plane
            _copy_plane(tile, args, x + offset, y + at * args.y_plane, row, rows, column, columns)


# --- partition of the work ------------------------------------------------------------------------------------------


def _plane(movement: Strided) -> tuple[CopyTile, list[Axis]]:
    """Select the method for planes; also returns at least three axes, those of the plane last, in bytes where it copies
    bytes."""
    size, lanes = movement.size, movement.isa.lanes
    outer = [ONE, ONE, ONE, *ordered(movement.axes)]
    columns = outer.pop()
    if columns.x == columns.y == size and columns.size * size in _ELEMENTS:  # a short run is an element
        size *= columns.size
        columns = outer.pop()
    if columns.x == columns.y == size and columns.size * size > _QUAD:
        return CopyTile(run_lanes(movement.isa), RUNS, 1), [*outer, Axis(columns.size * size, 1, 1)]
    for rows in (axis for axis in outer if axis.x == size == columns.y and size <= 4):
        walked = [*(axis for axis in outer if axis is not rows), rows, columns]  # by identity: another may be equal
        wide = _widest(lanes, size * columns.size)
        if wide and rows.size <= _FEW and columns.x == size * rows.size:
            return CopyTile(wide, UNZIP, size * rows.size, size), walked
        if columns.size <= _FEW and rows.y == size * columns.size and _widest(lanes, size * rows.size):
            return CopyTile(_widest(lanes, size * rows.size), ZIP, size * columns.size, size), walked
        if wide and size == 4:
            return CopyTile(wide, COLUMNS, 4), walked
    return CopyTile(lanes, ELEMENTS, size), [*outer, columns]


def run_lanes(isa: Isa) -> int:
    """Lanes of the vectors that copy runs: on a Zen 4, half ones are as fast in L2, and 1.1 times as fast beyond."""
    return isa.lanes // 2 if isa.store_cost > 1 else isa.lanes


def _widest(lanes: int, size: int) -> int:
    """float32 lanes of the widest vector, at most `lanes`, that `size` bytes fill; 0 if there is none."""
    return next((wide for wide in (16, 8, 4) if wide <= lanes and size >= 4 * wide), 0)


def _cut(tile: CopyTile, planes: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Planes, rows and columns per unit of work: whole vectors where the order of elements changes."""
    size, vector = (
        (1, 1) if tile.mode == RUNS else (tile.size, 1) if tile.mode == ELEMENTS else (tile.element, tile.across)
    )
    if tile.mode == UNZIP:  # a vector holds elements of all lines
        row_step = rows
    elif tile.mode == COLUMNS:
        row_step = divide(rows, divide(rows, _STRETCH))
    else:
        row_step = least(rows, _whole(_UNIT // (size * columns), vector))
    column_step = least(columns, _whole(_UNIT // (size * row_step), vector))
    return greatest(1, least(planes, _UNIT // (size * row_step * column_step))), row_step, column_step


def _whole(most: int, step: int) -> int:
    """The largest multiple of `step` that is at most `most`, but at least `step`."""
    return greatest(step, most - most % step)


def supports(movement: Strided) -> CopyTile:
    """Select the tile for a movement."""
    return _plane(movement)[0]


def cost(movement: Strided) -> float:
    """Cycles per cache line."""
    tile, (*_, rows, columns) = _plane(movement)
    if tile.mode == ELEMENTS:
        each = COSTS.far_element if abs(columns.x) >= LINE else COSTS.element
        return each * LINE / tile.size
    if tile.mode != COLUMNS:
        return _COSTS[tile.mode]
    if min(rows.size, _STRETCH) >= OPEN * count_l1_sets(rows.y):
        return _TRANSPOSED + COSTS.refetch
    return _TRANSPOSED + (columns.size <= _SHORT and rows.size >= _STRETCH)


def bind(movement: Strided, tile: CopyTile, space: Space) -> Step:
    """Make the call of the kernel."""
    first, table = movement.first, movement.table
    _, (*outer, rows, columns) = _plane(movement)
    many = (at for at in reversed(range(len(outer))) if now(outer[at].size) >= _MANY)
    planes = outer.pop(next(many, -1)) if table is None else first
    steps = _cut(tile, planes.size, rows.size, columns.size)
    args: Args = {
        "x": movement.x,
        "y": movement.y,
        "outer": sizes_array(each for axis in outer for each in axis),
        "axes": len(outer),
        "table": 0 if table is None else np.ascontiguousarray(table, np.int64),
    }
    units = math.prod(axis.size for axis in outer)
    for name, axis, step in zip(("plane", "row", "column"), (planes, rows, columns), steps, strict=True):
        parts = divide(axis.size, step)
        units *= parts
        args |= {f"{name}s": axis.size, f"{name}_step": step, f"{name}_parts": parts}
        args |= {f"x_{name}": axis.x, f"y_{name}": axis.y}
    args["units"] = units
    return Step(copy, tile, args)
