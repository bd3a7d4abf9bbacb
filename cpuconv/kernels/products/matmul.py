"""Batched matrix multiplication in place: GEMM tiles whose lanes are columns.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008). Panels of a few vectors
of columns of the right matrix are multiplied by rows of the left one, whose elements are broadcast, a tile of rows at a
time. A right matrix with short contiguous rows is read in place; any other is packed into the worker's workspace. The
left one is always read in place: a tile of its rows stays in L1 under a panel.

Where the right matrix fits a cache, a few tiles of rows are multiplied by all its panels before the next tiles. A GEMM
with a short reduction writes more than it reads, and so writes its output row by row. Else each panel is multiplied by
all rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.partition import first_even, parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.copies.copying import SHORTEST_RUN
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.products.closed.closed_set import closed_step
from cpuconv.kernels.products.matrices import MatmulProblem
from cpuconv.kernels.products.matvec import MatvecProblem, matvec_step
from cpuconv.kernels.products.panels import ANY, COPIED, IN_PLACE, TRANSPOSED, pack_panel
from cpuconv.kernels.products.row_strips import best_tile, last_columns, multiply_rows, row_strips
from cpuconv.problem.integers import divide
from cpuconv.runtime.kernel import kernel
from cpuconv.symbolic.sizes import applied, items_of, now

_MANY_UNITS = 16  # units per worker from which a more even share is not worth packing panels twice
_PACK_CYCLES, _FLOAT_CYCLES = 4.0, 1.5  # cycles to pack a vector, and a float32
_CHUNK = 4  # tiles of rows that are multiplied by all panels before the next ones
_FAR_ROWS = 1 << 11  # row stride in bytes from which rows touch many pages, and few of the cache's sets


# --- the kernel -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatmulTile:
    """How panels are made; the GEMM micro-kernels are arguments."""

    lanes: int
    pack: int


@kernel(
    "gemm gemm_last a b y offsets items groups grouped panel_columns columns depth chunks tiles whole_tiles rows "
    "table segments tails valid a_tile a_overlap b_row b_column y_row vector_bytes panel panel_step panel_bytes pitch"
)
def matmul(tile, worker, before, part, parts, args):
    """y = a b for each item: its three int64 words of `offsets` are the byte offsets of its matrices.

    Units are (item, group of panels of columns, chunk of tiles of rows, panel). The last tile of rows overlaps the
    previous one.
    """
    panels = args.panel + worker * args.panel_step
    group_units = args.chunks * args.grouped
    units = args.items * args.groups * group_units
    packed = last_unit(units, before, parts) // group_units
    for unit in range(units * part // parts, units * (part + 1) // parts):
        place = unit // group_units
        chunk = unit % group_units // args.grouped
        number = unit % args.grouped
        item = place // args.groups
        group_first = (place - item * args.groups) * args.grouped * args.panel_columns
        first = group_first + number * args.panel_columns
        last = first + args.panel_columns >= args.columns
        offsets = args.offsets + 24 * item
        a = args.a + word(tile, offsets, 0)
        b = args.b + word(tile, offsets, 1)
        y = args.y + word(tile, offsets, 2) + 4 * first
        if tile.pack != 0:
            if packed != place:
                packed = place
                for i in range(args.grouped):
                    column = group_first + i * args.panel_columns
                    count = min(args.panel_columns, args.columns - column)
                    to = panels + i * args.panel_bytes
                    source = b + column * args.b_column
                    pack_panel(tile, source, args.b_row, args.b_column, args.depth, count, to, args.pitch, 0, 0, 0)
            b = panels + number * args.panel_bytes
        else:
            b += first * args.b_column
        begin, end = args.tiles * chunk // args.chunks, args.tiles * (chunk + 1) // args.chunks
        multiply_rows(
            args.gemm_last if last else args.gemm, a, args.a_tile, args.a_overlap, args.table, args.segments,
            args.tails, args.pitch, b, y, args.y_row, args.vector_bytes, y, args.valid, args.rows, begin, end,
            args.whole_tiles,
        )  # fmt: skip


# --- tiles -----------------------------------------------------------------------------------------------------------


def seconds(processor: Processor, stack: Sequence[int], rows: int, depth: int, columns: int, packed: bool) -> float:
    """Modelled time of the matrix multiplications, in seconds; `packed`: panels are packed."""
    items, rows, depth, columns = map(now, (math.prod(stack), rows, depth, columns))
    packing = _PACK_CYCLES * depth * divide(columns, processor.isa.lanes) if packed else 0.0
    moved = items * (rows * depth + depth * columns + rows * columns) * F32.bytes
    cycles = items * (best_tile(processor.isa, rows, depth, columns)[0] + packing)
    return machine().seconds(cycles, processor.threads) + processor.moving(moved)


def _grouping(
    threads: int, width: int, in_place: bool, depth: int, panels: int, items: int, tiles: int
) -> tuple[int, int]:
    """Panels (of `width` bytes per row) that are packed together, and chunks of tiles that use them."""
    cached = depth * panels * width <= machine().l2 // 2 and (in_place or items >= threads)
    chunks = divide(tiles, _CHUNK)
    if cached and chunks > 1:
        return panels, chunks
    counts = [(1, 1 + i) for i in range(min(tiles, threads))]
    return 1, first_even(threads, items * panels, counts, _MANY_UNITS)[1]


def matmul_step(processor: Processor, space: Space, problem: MatmulProblem) -> Step:
    """One kernel call that computes a batched matrix multiplication."""
    problem = problem.normalized
    isa, threads, depth = processor.isa, processor.threads, problem.depth
    a, b, y = problem.a, problem.b, problem.y
    offsets, items = problem.offsets, math.prod(problem.stack)
    if problem.rows == 1:
        steps = a.column, b.row, b.column, y.column
        work = MatvecProblem(depth, problem.columns, a.ref, b.ref, y.ref, *steps, offsets, items)
        streamed = matvec_step(processor, work)
        if streamed is not None:
            return streamed
    strips = row_strips(isa, problem.rows, depth, problem.columns, a.row, a.column)
    v, tiles = strips.v, strips.tiles
    vector = isa.lanes * F32.bytes
    panels = divide(problem.columns, v * isa.lanes)
    rest = last_columns(problem.columns, v * isa.lanes)
    pack = IN_PLACE if b.column == F32.bytes or problem.columns == 1 else ANY
    if pack == IN_PLACE and b.row >= _FAR_ROWS and tiles >= _CHUNK and rest * F32.bytes >= SHORTEST_RUN:
        pack = COPIED
    elif pack == ANY and b.row == F32.bytes:
        pack = TRANSPOSED
    pitch = b.row if pack == IN_PLACE else v * vector
    grouping = functools.partial(_grouping, threads, v * vector, pack == IN_PLACE)
    grouped, chunks = items_of(applied(grouping, depth, panels, items, tiles))
    args: Args = {
        **strips.args,
        "a": a.ref,
        "b": b.ref,
        "y": y.ref,
        "offsets": offsets,
        "items": items,
        "groups": panels // grouped,
        "grouped": grouped,
        "panel_columns": v * isa.lanes,
        "columns": problem.columns,
        "depth": depth,
        "chunks": chunks,
        "rows": problem.rows,
        "b_row": b.row,
        "b_column": b.column,
        "y_row": y.row,
        "vector_bytes": vector,
        **worker_args("panel", space, 0 if pack == IN_PLACE else grouped * depth * pitch, threads),
        "panel_bytes": depth * pitch,
        "pitch": pitch,
    }
    parts = parts_if_shared(problem.flops) if threads > 1 else 0
    step = Step(matmul, MatmulTile(isa.lanes, pack), args, parts)
    if not isa.closed:
        return step
    closed = closed_step(step)
    assert closed is not None
    return closed
