"""Batched MatMul of two activations by instructions that multiply and add pairs of 16-bit elements.

float32 operands are rounded to bfloat16, with float32 sums. int8 and uint8 operands less their zero points are widened
to int16, with int32 sums and an epilogue (`Epilogue`; `matmul_int8.py` makes the step). Each worker converts and packs
some panels of columns of the right matrix as 32-bit groups of two rows. It then converts a chunk of rows of the left
matrix and multiplies it by all these panels. A tile is a few vectors of columns and a few rows, whose groups are
broadcast. The left matrix must be contiguous along its rows, the right one along its rows or columns.

On AMX (`matrix_rows.py`), float32 operands may also be split into parts of bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.partition import first_even, parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.copies.rounding import BF16_TYPES, PAIR, call_round_rows
from cpuconv.kernels.emit.intrinsics import word, zero_vector
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.emit.product import WORD, as_seen, single_product_of
from cpuconv.kernels.emit.product import Product as MacInstruction
from cpuconv.kernels.emit.transpose import transpose_block, transpose_part
from cpuconv.kernels.products import matrix_rows
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.matrices import MatmulProblem
from cpuconv.kernels.products.matrix_strip import load_configuration, release_tiles
from cpuconv.kernels.products.panels import PACKS, PART_COLUMNS, PART_ROWS, clear_ends, narrow_rows, pair_rows
from cpuconv.kernels.products.row_strips import best_tile, multiply_rows, segment_starts
from cpuconv.kernels.products.widening import call_widen_rows
from cpuconv.problem.integers import divide
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.symbolic.sizes import now

_UNROLL = 4  # 32-bit groups per segment
_MANY_UNITS = 16  # units per worker from which balance does not justify packing panels twice
_ROUND_CYCLES, _PACK_CYCLES = 2.5, 2.0  # per vector: to round float32, and to store 32-bit groups to a panel
_CALL_CYCLES = 300.0  # overhead per matrix of the batch


def bf16_instruction(isa: Isa) -> MacInstruction | None:
    """The instruction that multiplies pairs of bfloat16; None if the CPU has none."""
    found = single_product_of(BF16_TYPES, isa)
    return found if found is not None and found.packed == BF16 else None


# --- kernels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedMatmulTile:
    """Tile of the driver. `transposed`: the right matrix is contiguous along its columns, not its rows. `whole`:
    operands are integers, not float32. `y`: bytes per result. `parts`: for AMX, parts of bfloat16 of each operand; 0:
    other instructions.
    """

    lanes: int
    transposed: bool
    whole: bool = False
    y: int = F32.bytes
    parts: int = 0


def _round(tile, microkernel, x, x_step, depth, rows, y, y_step, zero):
    call_round_rows(microkernel, x=x, x_step=x_step, depth=depth, rows=rows, y=y, y_step=y_step)


def _widen(tile, microkernel, x, x_step, depth, rows, y, y_step, zero):
    call_widen_rows(microkernel, x=x, x_step=x_step, depth=depth, rows=rows, y=y, y_step=y_step, zero=zero)


@specialise_on_tile(lambda tile: narrow_rows.py_func if tile.parts else _widen if tile.whole else _round)
def _narrow(tile, microkernel, x, x_step, depth, rows, y, y_step, zero):
    """Convert rows to 16-bit elements."""


@specialise_on_tile(lambda tile: PACKS[PART_COLUMNS if tile.transposed else PART_ROWS])
def _pack_panel(tile, source, row, column, rows, columns, target, pitch, round_rows, lines, line):
    """Pack a panel of the right matrix for AMX."""


@inline
def _pack_parts(tile, args, b, count, lines, panels):
    """Pack panels of `count` columns of the right matrix for AMX."""
    for first in range(0, count, args.panel_columns):
        columns = min(args.panel_columns, count - first)
        target = panels + first // args.panel_columns * args.panel_bytes
        _pack_panel(
            tile, b + first * args.b_column, args.b_row, args.b_column, args.depth, columns, target, args.panel_row,
            args.narrow_right, lines, args.line_pitch,
        )  # fmt: skip


@inline
def _pack_pairs(tile, args, b, count, lines, panels):
    """Pack panels of `count` columns of the right matrix as 32-bit groups of two rows."""
    vector = 4 * tile.lanes
    if tile.transposed:
        _narrow(
            tile,
            args.narrow_right,
            b,
            args.b_column,
            args.depth,
            count,
            lines,
            args.line_pitch,
            args.right_zero,
        )
    else:
        _narrow(
            tile,
            args.narrow_right,
            b,
            args.b_row,
            count,
            args.depth,
            lines,
            args.line_pitch,
            args.right_zero,
        )
        if args.depth % 2 == 1:
            for at in range(0, args.line_pitch, vector):
                zero_vector(tile, lines + args.depth * args.line_pitch + at)
    for column in range(0, count, tile.lanes):
        panel = column // args.panel_columns
        to = panels + panel * args.panel_bytes + 4 * (column - panel * args.panel_columns)
        if tile.transposed:
            present = min(tile.lanes, count - column)
            source = lines + column * args.line_pitch
            for row in range(0, args.words, tile.lanes):
                goal = to + row * args.panel_row
                if present == tile.lanes:
                    transpose_block(tile, source + 4 * row, args.line_pitch, goal, args.panel_row)
                else:
                    transpose_part(tile, source + 4 * row, args.line_pitch, present, goal, args.panel_row, tile.lanes)
        else:
            for row in range(args.words):
                source = lines + 2 * row * args.line_pitch + 2 * column
                pair_rows(tile, source, args.line_pitch, to + row * args.panel_row)


@kernel(
    "gemm gemm_last narrow_left narrow_right numbers left_zero right_zero a b y offsets items groups grouped "
    "panel_columns columns depth words table segments tails valid chunks tiles rows cols a_row b_row b_column y_row "
    "vector_bytes a_chunk a_chunk_step a_pitch line line_step line_pitch panel panel_step panel_row panel_bytes "
    "a_part chunk_rows configuration"
)
def matmul_pairs(tile, worker, before, part, parts, args):
    """y = a b for each item of the batch; its three words of `offsets` are the byte offsets of its matrices.

    Units are (item, group of panels of columns, chunk of tiles of rows). `line`: rows or columns of the right matrix as
    16-bit elements; `panel`: 32-bit groups of two rows.
    """
    halves = args.a_chunk + worker * args.a_chunk_step
    lines = args.line + worker * args.line_step
    panels = args.panel + worker * args.panel_step
    if tile.parts > 0:
        load_configuration(tile, args.configuration)
        clear_ends(tile, halves, args.a_pitch, args.a_part, args.chunk_rows, args.chunk_rows)
    units = args.items * args.groups * args.chunks
    packed = last_unit(units, before, parts) // args.chunks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        place, chunk = unit // args.chunks, unit % args.chunks
        item, group = place // args.groups, place % args.groups
        offsets = args.offsets + 24 * item
        first_column = group * args.grouped * args.panel_columns
        count = min(args.grouped * args.panel_columns, args.columns - first_column)
        if packed != place:
            packed = place
            b = args.b + word(tile, offsets, 1) + first_column * args.b_column
            if tile.parts > 0:
                _pack_parts(tile, args, b, count, lines, panels)
            else:
                _pack_pairs(tile, args, b, count, lines, panels)
        begin, end = args.tiles * chunk // args.chunks, args.tiles * (chunk + 1) // args.chunks
        first = min(begin * args.cols, args.rows - args.cols)
        rows = min(end * args.cols, args.rows) - first
        whole = rows // args.cols  # tiles; the one after them overlaps the last one
        a = args.a + word(tile, offsets, 0) + first * args.a_row
        _narrow(tile, args.narrow_left, a, args.a_row, args.depth, rows, halves, args.a_pitch,
                args.a_part if tile.parts > 0 else args.left_zero)  # fmt: skip
        y = args.y + word(tile, offsets, 2) + first * args.y_row + tile.y * first_column
        for panel in range((count + args.panel_columns - 1) // args.panel_columns):
            column = first_column + panel * args.panel_columns
            multiply_rows(
                args.gemm_last if column + args.panel_columns >= args.columns else args.gemm, halves,
                args.cols * args.a_pitch, (rows - args.cols - whole * args.cols) * args.a_pitch, args.table,
                args.segments, args.tails, args.a_part if tile.parts > 0 else 0, panels + panel * args.panel_bytes,
                y + tile.y * panel * args.panel_columns, args.y_row, args.vector_bytes, args.numbers, args.valid, rows,
                0, (rows + args.cols - 1) // args.cols, whole,
            )  # fmt: skip
    if tile.parts > 0:
        release_tiles(tile)


# --- steps ----------------------------------------------------------------------------------------------------------


def seconds(
    processor: Processor, stack: Sequence[int], rows: int, depth: int, columns: int, found: MacInstruction
) -> float:
    """Modelled time of a MatMul, in seconds; infinite for a vector."""
    isa = processor.isa
    items, rows, depth, columns = map(now, (math.prod(stack), rows, depth, columns))
    if 1 in (rows, columns):
        return math.inf
    words, vectors = divide(depth, PAIR), divide(columns, isa.lanes)
    if found.matrix:
        rounding = matrix_rows.narrowing_cycles(found, isa, rows, depth)
        rounding += matrix_rows.packing_cycles(found, isa, depth, columns)
        products = matrix_rows.cycles(found, isa, rows, depth, columns, _matrix_height(rows))
    else:
        rounding = _ROUND_CYCLES * (rows * divide(depth, isa.lanes) + depth * vectors) + _PACK_CYCLES * words * vectors
        products = best_tile(as_seen(isa, found), rows, words, columns)[0]
    cycles = items * (products + rounding + _CALL_CYCLES)
    moved = items * (rows * depth + depth * columns + rows * columns) * F32.bytes
    return machine().seconds(cycles, processor.threads) + processor.moving(moved)


def _matrix_height(rows: int) -> int:
    """Rows of an AMX tile: equal shares of the current rows."""
    return divide(now(rows), divide(now(rows), matrix_rows.MAX_ROWS))


def bf16_matmul_step(processor: Processor, space: Space, work: MatmulProblem, found: MacInstruction) -> Step | None:
    """Make one call that computes a float32 MatMul, where `found` multiplies bfloat16; None where the operands' strides
    don't allow it."""
    work = work.normalized
    a, b, y = work.a, work.b, work.y
    apart = (a.column, y.column) != (F32.bytes, F32.bytes) or F32.bytes not in (b.row, b.column)
    if apart or 1 in (work.rows, work.columns):
        return None
    narrow = matrix_rows.narrowing(found, processor.isa.lanes, F32)
    return pairs_step(processor, space, work, found, {"narrow_left": narrow, "narrow_right": narrow})


def pairs_step(
    processor: Processor,
    space: Space,
    work: MatmulProblem,
    found: MacInstruction,
    given: Args,
    *,
    x: Element = F32,
    y: Element = F32,
) -> Step:
    """Make one call that computes a batched MatMul of operands of type `x` by an instruction on pairs of elements.

    `given`: the kernels that convert both operands to 16 bits; for integers also zero points and the epilogue's rows.
    """
    isa, threads, depth = processor.isa, processor.threads, work.depth
    a, b = work.a, work.b
    transposed = b.column != x.bytes and work.columns > 1
    words, matrix = divide(depth, PAIR), found.matrix
    if matrix:
        v, n = matrix_rows.V, _matrix_height(work.rows)
        if work.rows < n:  # of other sizes that the step serves
            raise ValueError("tiles of more rows than there are")
    else:
        _, v, n = best_tile(as_seen(isa, found), work.rows, words, work.columns)
    vector = isa.lanes * WORD
    # rows of 32-bit groups are padded to whole vectors
    part, panel_columns = divide(words, isa.lanes) * vector, v * isa.lanes
    pitch = (part * found.parts | vector) if matrix else part  # an odd number of cache lines
    panels, tiles = divide(work.columns, panel_columns), divide(work.rows, n)
    panel_bytes = divide(words, isa.lanes) * isa.lanes * v * vector * (found.parts if matrix else 1)
    grouped = min(panels, max(1, machine().l2 // 4 // panel_bytes))
    groups, items = divide(panels, grouped), math.prod(work.stack)
    least = min(tiles, divide(work.rows * pitch, machine().l2 // 4))
    chunks = max(least, first_even(threads, items * groups, [(1, 1 + i) for i in range(min(tiles, threads))],
                                   _MANY_UNITS)[1])  # fmt: skip
    count = min(grouped * panel_columns, work.columns)
    if matrix:
        line_pitch, lines = matrix_rows.lines(found, depth, PART_COLUMNS if transposed else PART_ROWS)
    else:
        line_pitch = pitch if transposed else divide(count, 2 * isa.lanes) * vector
        lines = count if transposed else depth + 1
    rest = work.columns - (panels - 1) * panel_columns
    valid = rest % isa.lanes
    if matrix:
        strips = matrix_rows.strips(found, isa, work.rows, depth, work.columns, pitch, n, masked=True).args
        strips = {name: strips[name] for name in ("gemm", "gemm_last", "table", "segments", "tails", "valid")}
    else:
        whole = GemmTile(isa.lanes, v, 1, n, _UNROLL, pitch // WORD, 0, planar=True, tail=1, has_epilogue=x.integer,
                         product=found.name, x=found.x, y=y)  # fmt: skip
        masked = {"masked": valid > 0} if y == F32 else {"valid": valid}
        strips = {
            "gemm": MicroRef(gemm_strip, whole) if panels > 1 else 0,
            "gemm_last": MicroRef(gemm_strip, replace(whole, unused_vectors=v - divide(rest, isa.lanes), **masked)),
            "table": segment_starts(_UNROLL, words, WORD),
            "segments": words // _UNROLL + words % _UNROLL,
            "tails": words % _UNROLL,
            "valid": valid,
        }
    rows_at_once = (divide(tiles, chunks) + 1) * n
    args: Args = {
        **strips,
        "configuration": matrix_rows.registers(n) if matrix else 0,
        "a_part": part,
        "chunk_rows": rows_at_once,
        **dict.fromkeys(("numbers", "left_zero", "right_zero"), 0),
        **given,
        "a": a.ref,
        "b": b.ref,
        "y": work.y.ref,
        "offsets": work.offsets,
        "items": items,
        "groups": groups,
        "grouped": grouped,
        "panel_columns": panel_columns,
        "columns": work.columns,
        "depth": depth,
        "words": words,
        "chunks": chunks,
        "tiles": tiles,
        "rows": work.rows,
        "cols": n,
        "a_row": a.row,
        "b_row": b.row,
        "b_column": b.column,
        "y_row": work.y.row,
        "vector_bytes": isa.lanes * y.bytes,
        **worker_args("a_chunk", space, rows_at_once * pitch, threads),
        "a_pitch": pitch,
        **worker_args("line", space, lines * line_pitch, threads),
        "line_pitch": line_pitch,
        **worker_args("panel", space, grouped * panel_bytes, threads),
        "panel_row": v * vector,
        "panel_bytes": panel_bytes,
    }
    tile = PairedMatmulTile(isa.lanes, transposed, x.integer, y.bytes, found.parts if matrix else 0)
    parts = parts_if_shared(work.flops) if threads > 1 else 0
    return Step(matmul_pairs, tile, args, parts)
