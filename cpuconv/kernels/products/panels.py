"""Packing of strided matrices to panels: contiguous rows of a few vectors, each of a row or of a pair of rounded rows.

A float32 row is copied, transposed from contiguous columns, or gathered by elements. For instructions that multiply
pairs of bfloat16, rows or columns are rounded first; a vector of 32-bit groups then has elements of two rows.
"""

from __future__ import annotations

from typing import Any

from cpuconv.elements import BF16
from cpuconv.isa.typed import load_narrow
from cpuconv.isa.vector import Vector
from cpuconv.kernels.copies.copying import SHORTEST_RUN, copy_run
from cpuconv.kernels.copies.rounding import call_round_rows
from cpuconv.kernels.emit.intrinsics import copy_float, emitter, zero_vector
from cpuconv.kernels.emit.transpose import transpose_block, transpose_part
from cpuconv.runtime.kernel import inline

IN_PLACE, COPIED, TRANSPOSED, ANY, ROUNDED, PAIRED_ROWS, PAIRED_COLUMNS = range(7)
"""How a matrix is packed: not at all; from contiguous rows; from contiguous columns; by elements; the same rounded to
bfloat16: rows as they are, pairs of contiguous rows, and pairs along contiguous columns."""


def panel_packing(row: int, column: int) -> int:
    """How to pack a float32 matrix with these byte strides to panels."""
    return COPIED if column == 4 else TRANSPOSED if row == 4 else ANY


def paired_packing(row: int, column: int, size: int = 4) -> int | None:
    """How to pack pairs of rounded rows of a matrix with elements of `size` bytes; None: neither rows nor columns are
    contiguous.
    """
    return PAIRED_ROWS if column == size else PAIRED_COLUMNS if row == size else None


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
}
"""Functions of one signature, by the way of packing."""
