"""Copies of a tensor between two memory views of equal shape, whatever the order of their axes.

Axes that are contiguous with each other in both views are merged. The two innermost of the remaining axes form a plane.
A plane is copied in runs of bytes where both views are contiguous along the same axis. Where each is contiguous along
another axis, it is transposed in registers; else it is copied element by element. The outer axes are loops. Strides of
the source may be negative or zero.
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
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView, image_shape
from cpuconv.kernels.copies.rows import ROWS, RowTile, pack_vectors, unpack_vectors
from cpuconv.kernels.copies.transposing import transpose_step
from cpuconv.kernels.emit.intrinsics import emitter, word
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel

RUNS, COLUMNS, LINES, ZIP, UNZIP, ELEMENTS = range(6)
"""How a plane is copied: rows as bytes; transposed by vectors that run down its columns, or along its rows; a few lines
interleaved, or deinterleaved; element by element."""

_QUAD = 16  # bytes per move at the ends of runs, and of the largest element
SHORTEST_RUN = _QUAD
_ELEMENTS = (1, 2, 4, 8, _QUAD)
_FEW = 4  # maximum lines that are interleaved; more of them are transposed
_MANY = 8  # minimum planes of a unit; a shorter axis does not repay the overhead of a unit
_UNIT = 1 << 15  # bytes per unit of work, where planes allow
_STRETCH = 64  # pixels of all lines per transposition: few pages and cache lines are open at a time


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
    """

    lanes: int
    mode: int
    size: int

    @property
    def line(self) -> RowTile:
        """Loop that packs vectors from, or unpacks them to, rows of 32-bit elements."""
        return RowTile(self.lanes, ROWS)


class Axis(NamedTuple):
    """An axis of both views: its size in elements, and its stride in each view, in bytes."""

    size: int
    x: int
    y: int


_ONE = Axis(1, 0, 0)


# --- the kernel -----------------------------------------------------------------------------------------------------


@emitter
def _copy_vector(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy one vector between unaligned addresses."""
    vec.store(vec.load(vec.pointer(source), align=1), vec.pointer(target), align=1)


@emitter
def _copy_quad(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy 16 bytes between unaligned addresses."""
    quad = Vector(vec.builder, _QUAD // 4)
    quad.store(quad.load(quad.pointer(source), align=1), quad.pointer(target), align=1)


@emitter
def _copy_element(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy `tile.size` bytes between unaligned addresses."""
    kind = (F32 if tile.size == 4 else ir.IntType(8 * tile.size)).as_pointer()
    value = vec.builder.load(vec.builder.inttoptr(source, kind))
    value.align = 1
    vec.builder.store(value, vec.builder.inttoptr(target, kind)).align = 1


def picked(vec: Vector, value: Any, vectors: Sequence[Any], places: Sequence[int]) -> Any:
    """Gather the lanes `places` of the concatenated vectors into one; lanes whose place is in none keep `value`."""
    for number, other in enumerate(vectors):
        here = [place - number * vec.lanes for place in places]
        mask = [vec.lanes + at if 0 <= at < vec.lanes else lane for lane, at in enumerate(here)]
        value = vec.shuffle(value, other, mask)
    return value


@emitter
def _zip(tile: Any, vec: Vector, source: Any, step: Any, target: Any) -> None:
    """Interleave `lanes` 32-bit elements of each of a few lines, `step` bytes apart: first all first ones, …"""
    lines, source, target = tile.size // 4, vec.pointer(source), vec.pointer(target)
    vectors = [vec.load(vec.offset(source, vec.builder.mul(step, I64(i)))) for i in range(lines)]
    for first in range(0, lines * vec.lanes, vec.lanes):
        places = [at % lines * vec.lanes + at // lines for at in range(first, first + vec.lanes)]
        vec.store(picked(vec, vectors[0], vectors, places), vec.offset(target, 4 * first))


@emitter
def _unzip(tile: Any, vec: Vector, source: Any, target: Any, step: Any) -> None:
    """Deinterleave: the reverse of `_zip`."""
    lines, source, target = tile.size // 4, vec.pointer(source), vec.pointer(target)
    vectors = [vec.load(vec.offset(source, vec.size * i)) for i in range(lines)]
    for line in range(lines):
        value = picked(vec, vectors[0], vectors, [lane * lines + line for lane in range(vec.lanes)])
        vec.store(value, vec.offset(target, vec.builder.mul(step, I64(line))))


@inline
def copy_run(tile, x, y, size):
    """Copy `size` bytes, at least `SHORTEST_RUN`; the last vector overlaps the one before."""
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
    """Copy the rows and columns from `row` and `column` on of the plane at `x` to the plane at `y`."""


@kernel(
    "x y units outer axes table y_table planes rows columns plane_step row_step column_step "
    "plane_parts row_parts column_parts x_plane x_row x_column y_plane y_row y_column"
)
def copy(tile, worker, before, part, parts, args):
    """y = x by planes of rows and columns, cut into parts of `…_step` planes, rows and columns.

    `outer` is the address of (size, x stride, y stride) of each of the `axes` outer axes, fastest last. With a `table`
    of byte offsets into x, one more axis is the outermost loop.
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


# --- partition of the work ------------------------------------------------------------------------------------------


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


def _plane(axes: list[Axis], size: int, lanes: int) -> tuple[CopyTile, list[Axis]]:
    """Select the method for planes; also returns all axes, those of the plane last, in bytes where it copies bytes."""
    *outer, columns = axes or [_ONE]
    if columns.x == columns.y == size and columns.size * size in _ELEMENTS:  # a short run is an element
        size *= columns.size
        *outer, columns = outer or [_ONE]
    if columns.x == columns.y == size and columns.size * size > _QUAD:
        return CopyTile(lanes, RUNS, 1), [*outer, Axis(columns.size * size, 1, 1)]
    beside = [axis for axis in outer if axis.x == size == 4 == columns.y]
    if beside and max(columns.size, beside[0].size) >= 4:
        rows = beside[0]
        outer = [axis for axis in outer if axis is not rows]  # by identity: another axis may be equal
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
    """Planes, rows and columns per unit of work: whole vectors where the order of elements changes."""
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
    """The largest multiple of `step` that is at most `most`, but at least `step`."""
    return greatest(step, most - most % step)


def copy_step(processor: Processor, x: TensorView, y: TensorView, table: np.ndarray | None = None) -> Step:
    """Make one kernel call that copies a plain tensor to another of the same shape, neither of which is empty.

    Parameters
    ----------
    processor : Processor
    x, y : TensorView
        Tensors of any strides; those of `y` are positive, and its elements do not overlap.
    table : np.ndarray or None
        If given, element i of the first axis is read at ``x.ref + table[i]`` bytes, instead of by the first stride.
    """
    axes = [Axis(*axis) for axis in zip(x.shape, x.strides, y.strides, strict=True)]
    size = x.dtype.itemsize
    first, axes = (axes[0], axes[1:]) if table is not None else (_ONE, axes)
    ordered = sorted((axis for axis in axes if axis.size > 1), key=lambda axis: -axis.y)
    tile, walked = _plane([Axis(*axis) for axis in merge_axes(ordered)], size, processor.isa.lanes)
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


def physical(place: TensorView) -> TensorView:
    """The memory of a tensor as a plain tensor; of a blocked one with all lanes."""
    return replace(place, shape=place.physical, block=1, array=None)


def copy_steps(processor: Processor, space: Space, x: TensorView, y: TensorView) -> list[Step]:
    """Make the kernel calls that copy one tensor to another of the same shape, whatever their forms."""
    if 0 in x.shape:
        return []
    if x.block == y.block:
        return [copy_step(processor, physical(x), physical(y))]
    step = transpose_step(
        processor.isa, space, image_shape(x.shape), x.operand, y.operand, processor.threads, x.element
    )
    return [replace(step, parts=processor.parts(x.size + y.size))]
