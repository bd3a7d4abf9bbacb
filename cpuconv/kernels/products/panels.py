"""Packing of strided matrices to panels: contiguous rows of a few vectors, each of a row or of a pair of rounded rows.

A float32 row is copied, transposed from contiguous columns, or gathered by elements. For instructions that multiply
pairs of bfloat16, rows or columns are rounded first; a vector of 32-bit groups then has elements of two rows.

For AMX, a panel is [segment][part][pair of rows][vector][lanes][2]: a segment has 32 rows, and parts are the one
rounded matrix, or those into which float32 is split (`tile.parts`).
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import BF16
from cpuconv.isa.typed import load_narrow
from cpuconv.isa.vector import Vector
from cpuconv.kernels.copies.copying import SHORTEST_RUN, copy_run
from cpuconv.kernels.copies.rounding import call_round_rows, call_split_rows
from cpuconv.kernels.emit.intrinsics import copy_float, emitter, zero_vector
from cpuconv.kernels.emit.transpose import transpose_block, transpose_part
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline

IN_PLACE, COPIED, TRANSPOSED, ANY, ROUNDED, PAIRED_ROWS, PAIRED_COLUMNS, PART_ROWS, PART_COLUMNS = range(9)
"""How a matrix is packed: not at all; from contiguous rows; from contiguous columns; by elements; the same rounded to
bfloat16: rows as they are, pairs of contiguous rows, and pairs along contiguous columns; pairs of parts for AMX, of
contiguous rows and along contiguous columns."""
SEGMENT = 32  # rows of a segment of a panel for AMX


def panel_packing(row: int, column: int) -> int:
    """How to pack a float32 matrix with these byte strides to panels."""
    return COPIED if column == 4 else TRANSPOSED if row == 4 else ANY


def paired_packing(row: int, column: int, size: int = 4, parts: bool = False) -> int | None:
    """How to pack pairs of rounded rows, or of `parts`, of a matrix with elements of `size` bytes; None: neither rows
    nor columns are contiguous.
    """
    rows, columns = (PART_ROWS, PART_COLUMNS) if parts else (PAIRED_ROWS, PAIRED_COLUMNS)
    return rows if column == size else columns if row == size else None


@inline
def _gather(tile, source, row, column, rows, columns, target, pitch):
    for i in range(rows):
        for j in range(columns):
            copy_float(tile, source + i * row + j * column, target + i * pitch + 4 * j)


@inline
def _transpose(tile, source, column, rows, columns, target, pitch):
    """Transpose columns, `column` bytes apart, of contiguous 32-bit rows; fewer than `lanes` rows are gathered."""
    if rows < tile.lanes:
        _gather(tile, source, 4, column, rows, columns, target, pitch)
    else:
        for first in range(0, columns, tile.lanes):
            present = min(tile.lanes, columns - first)
            for i in range(0, rows, tile.lanes):
                i = min(i, rows - tile.lanes)
                place = source + first * column + 4 * i
                to = target + i * pitch + 4 * first
                if present == tile.lanes:
                    transpose_block(tile, place, column, to, pitch)
                else:
                    transpose_part(tile, place, column, present, to, pitch, tile.lanes)


def _copied(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    if 4 * columns < SHORTEST_RUN:
        _gather(tile, source, row, column, rows, columns, target, pitch)
    else:
        for i in range(rows):
            copy_run(tile, source + i * row, target + i * pitch, 4 * columns)


def _transposed(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    _transpose(tile, source, column, rows, columns, target, pitch)


def _gathered(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    _gather(tile, source, row, column, rows, columns, target, pitch)


def _rounded(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    call_round_rows(round_rows, x=source, x_step=row, depth=columns, rows=rows, y=target, y_step=pitch)


def _paired_rows(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    call_round_rows(round_rows, x=source, x_step=row, depth=columns, rows=rows, y=lines, y_step=line)
    if rows % 2 == 1:
        for at in range(0, line, 4 * tile.lanes):
            zero_vector(tile, lines + rows * line + at)
    for i in range((rows + 1) // 2):
        for first in range(0, columns, tile.lanes):
            pair_rows(tile, lines + 2 * i * line + 2 * first, line, target + i * pitch + 4 * first)


def _paired_columns(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    call_round_rows(round_rows, x=source, x_step=column, depth=rows, rows=columns, y=lines, y_step=line)
    _transpose(tile, lines, line, (rows + 1) // 2, columns, target, pitch)


@inline
def narrow_rows(tile, microkernel, x, x_step, depth, rows, y, y_step, part_step):
    """Round rows to bfloat16, or split them into parts that are `part_step` bytes apart."""
    if tile.parts == 1:
        call_round_rows(microkernel, x=x, x_step=x_step, depth=depth, rows=rows, y=y, y_step=y_step)
    else:
        call_split_rows(
            microkernel, x=x, x_step=x_step, depth=depth, rows=rows, y=y, y_step=y_step, part_step=part_step
        )


@inline
def clear_ends(tile, target, row, part, rows, padded):
    """Zero what `narrow_rows` may not write of the last segment of each part; of rows from `rows` on, all segments."""
    for i in range(padded):
        first = 0 if i >= rows else part - 2 * SEGMENT
        for each in range(tile.parts):
            for at in range(first, part, 2 * SEGMENT):
                zero_vector(tile, target + i * row + each * part + at)


def _part_rows(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    part = SEGMENT * line
    for segment in range((rows + SEGMENT - 1) // SEGMENT):
        first = SEGMENT * segment
        present = min(SEGMENT, rows - first)
        narrow_rows(tile, round_rows, source + first * row, row, columns, present, lines, line, part)
        for each in range(tile.parts):
            start = lines + each * part
            for i in range(present, SEGMENT):
                zero_vector(tile, start + i * line)
            goal = target + (segment * tile.parts + each) * (SEGMENT // 2) * pitch
            for i in range(SEGMENT // 2):
                for at in range(0, columns, tile.lanes):
                    pair_rows(tile, start + 2 * i * line + 2 * at, line, goal + i * pitch + 4 * at)


def _part_columns(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    segments = (rows + SEGMENT - 1) // SEGMENT
    step = tile.parts * line
    for i in range(tile.parts * tile.lanes):
        zero_vector(tile, lines + i * line + 2 * SEGMENT * (segments - 1))
    for first in range(0, columns, tile.lanes):
        present = min(tile.lanes, columns - first)
        narrow_rows(tile, round_rows, source + first * column, column, rows, present, lines, step, line)
        for segment in range(segments):
            for each in range(tile.parts):
                place = lines + each * line + 2 * SEGMENT * segment
                goal = target + (segment * tile.parts + each) * (SEGMENT // 2) * pitch + 4 * first
                if present == tile.lanes:
                    transpose_block(tile, place, step, goal, pitch)
                else:
                    transpose_part(tile, place, step, present, goal, pitch, tile.lanes)


@emitter
def pair_rows(tile: Any, vec: Vector, source: Any, step: Any, target: Any) -> None:
    """Store a vector of 32-bit groups: 16-bit elements of one row and of the next, `step` bytes further."""
    first = vec.pointer(source)
    low, high = (
        vec.builder.zext(load_narrow(vec, BF16, place), vec.int_type) for place in (first, vec.offset(first, step))
    )
    groups = vec.builder.or_(low, vec.builder.shl(high, vec.int_constant(16)))
    vec.store(vec.builder.bitcast(groups, vec.type), vec.pointer(target))


PACKS = {
    IN_PLACE: _gathered,
    COPIED: _copied,
    TRANSPOSED: _transposed,
    ANY: _gathered,
    ROUNDED: _rounded,
    PAIRED_ROWS: _paired_rows,
    PAIRED_COLUMNS: _paired_columns,
    PART_ROWS: _part_rows,
    PART_COLUMNS: _part_columns,
}
"""Functions of one signature, by the way of packing."""


@dataclass(frozen=True)
class PanelTile:
    """How a matrix is packed: a key of `PACKS`, and for AMX, parts of bfloat16 of each element (0: no AMX)."""

    lanes: int
    pack: int
    parts: int = 0


@specialise_on_tile(lambda tile: PACKS[tile.pack])
def pack_panel(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    """Pack (rows, columns) float32 at `source` to rows of `pitch` bytes.

    `lines`: memory for all rounded rows or columns, `line` bytes each, and for one more row.
    """
