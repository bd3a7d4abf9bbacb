"""Products of two activations on AMX, rounded to bfloat16 or split into parts of float32: strips, and their cost.

Rows of the left operand are [part][segment][32 elements]; the right one is packed in panels of two vectors of columns
(`panels.py`). Both are zero where a last segment has no elements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.elements import BF16
from cpuconv.isa import Isa
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf
from cpuconv.kernels.copies.rounding import PART_CYCLES, RoundTile, SplitTile, round_rows, split_rows
from cpuconv.kernels.emit.product import Product
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.matrix_strip import ROW_BYTES, ROWS, configuration, matrix_cycles, matrix_strip
from cpuconv.kernels.products.panels import PART_ROWS, SEGMENT
from cpuconv.kernels.products.row_strips import RowStrips, last_columns
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import applied, is_symbolic

V = 2  # vectors of columns of a panel
MAX_ROWS = 2 * ROWS  # of a tile
_PAIR_CYCLES = 2.0  # to pair two rounded rows, or transpose their pairs, for each vector of elements


def part_bytes(depth: Any) -> Any:
    """Bytes of a part of a row of the left operand."""
    return divide(depth, SEGMENT) * ROW_BYTES


def panel_rows(product: Product, depth: Any) -> Any:
    """Rows of a panel."""
    return divide(depth, SEGMENT) * product.parts * ROWS


def narrowing(product: Product, lanes: int, x: Any) -> MicroRef:
    """The micro-kernel that rounds or splits rows of type `x`."""
    if product.parts == 1:
        return MicroRef(round_rows, RoundTile(lanes, x))
    return MicroRef(split_rows, SplitTile(lanes, product.parts))


def lines(product: Product, rows: Any, packing: int) -> tuple[Any, Any]:
    """Bytes and number of the lines to which rows or columns of a panel with so many rows are rounded or split."""
    if packing == PART_ROWS:
        return 2 * SEGMENT, product.parts * SEGMENT
    return applied(_column_bytes, rows), product.parts * ROWS


def _column_bytes(rows: int) -> int:
    return (divide(rows, SEGMENT) | 1) * ROW_BYTES  # an odd number of cache lines, spread over the cache's sets


def strips(
    product: Product, isa: Isa, rows: Any, depth: Any, columns: Any, row: Any, tile_rows: int, masked: bool = False
) -> RowStrips:
    """Strips for `rows` rows of the left operand, `row` bytes apart.

    `masked`: no more than `columns` elements of a row of the output are written, not whole vectors.
    """
    tile = GemmTile(
        isa.lanes, V, 1, tile_rows, ROWS, 0, 0, planar=True, has_epilogue=False, product=product.name, x=BF16
    )
    rest, panels, tiles = last_columns(columns, V * isa.lanes), divide(columns, V * isa.lanes), divide(rows, tile_rows)
    masked = masked and (is_symbolic(rest) or rest % isa.lanes > 0)
    lasts = tuple(MicroRef(matrix_strip, replace(tile, unused_vectors=V - v, masked=masked)) for v in (1, V))
    index = divide(rest, isa.lanes) - 1
    args: Args = {
        "gemm": MicroRef(matrix_strip, tile) if is_symbolic(panels) or panels > 1 else 0,
        "gemm_last": OneOf(lasts, index) if is_symbolic(index) else lasts[index],
        "tiles": tiles,
        "whole_tiles": rows // tile_rows,
        "table": applied(_segment_starts, divide(depth, SEGMENT)),
        "segments": divide(depth, SEGMENT),
        "tails": 0,
        "valid": (rest - 1) % isa.lanes + 1,
        "a_tile": tile_rows * row,
        "a_overlap": (rows - tiles * tile_rows) * row,
    }
    return RowStrips(V, ROWS, tiles, args)


def registers(tile_rows: int) -> np.ndarray:
    """The configuration of tile registers for strips with tiles of so many rows."""
    return configuration(V, 1, tile_rows)


def _segment_starts(segments: int) -> np.ndarray:
    return np.arange(segments, dtype=np.int64) * ROW_BYTES


def cycles(product: Product, isa: Isa, rows: int, depth: int, columns: int, tile_rows: int) -> float:
    """Modelled cycles of the strips."""
    multiplications = divide(depth, SEGMENT) * max(1, len(product.pairs))
    panels, last = divide(columns, V * isa.lanes), divide(last_columns(columns, V * isa.lanes), isa.lanes)
    whole, rest = (matrix_cycles(v, 1, tile_rows, multiplications, finished=False) for v in (V, last))
    return divide(rows, tile_rows) * ((panels - 1) * whole + rest)


def narrowing_cycles(product: Product, isa: Isa, rows: int, depth: int) -> float:
    """Modelled cycles to round or split rows."""
    return PART_CYCLES * product.parts * rows * divide(depth, isa.lanes)


def packing_cycles(product: Product, isa: Isa, depth: int, columns: int) -> float:
    """Modelled cycles to pack panels."""
    return (PART_CYCLES + _PAIR_CYCLES) * product.parts * depth * divide(columns, isa.lanes)
