"""Stacks of products of two matrices whose numbers become 16 bits as they are packed, by an instruction of two.

Floats are rounded to bfloat16, and sums are float32; bytes less their zero points are int16, and sums int32, which end
as `Ending` says (`matmul_bytes.py` has the step). Each worker narrows and packs some panels of columns of the right
matrix as words of two rows, then narrows a chunk of rows of the left one, which all these panels meet: tiles of a few
vectors of columns and a few rows, whose words are broadcast. Elements of the left matrix's rows must lie side by side,
and of the right one's rows or columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.elements import BF16, F32, Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import load_narrow, store_narrow
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.partition import first_even, parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.copies.rounding import HALVES, PAIR, RoundTile, call_round_rows, round_rows
from cpuconv.kernels.elementwise.ending import Ending
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.intrinsics import emitter, word, zero_vector
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.emit.product import BY_NAME, WORD, as_seen, single_product_of
from cpuconv.kernels.emit.product import Product as Multiplied
from cpuconv.kernels.emit.transpose import transpose_block, transpose_part
from cpuconv.kernels.paired.widening import call_widen_rows
from cpuconv.kernels.products.matmul import best_tile
from cpuconv.kernels.products.matrices import Product
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.described import specialise_on_tile
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_UNROLL = 4  # words of one turn of the loop
_MANY_UNITS = 16  # for each worker: sharing one more is not worth packing panels twice
_ROUND_CYCLES, _PACK_CYCLES = 2.5, 2.0  # to round a vector of floats, and to put a vector of words into its panel
_CALL_CYCLES = 300.0  # of an item, beside its products


def product_of_halves(isa: Isa) -> Multiplied | None:
    """The instruction that multiplies words of two bfloat16; None where there is none."""
    found = single_product_of(HALVES, isa)
    return found if found is not None and found.packed == BF16 else None


# --- kernels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StripTile:
    """`v` vectors of columns of the `packed` ones of a panel, of the last of which `valid` are columns, and `rows`,
    `pitch` bytes apart; results are stored as `y`.
    """

    lanes: int
    v: int
    packed: int
    rows: int
    pitch: int
    valid: int
    product: str
    y: Element = F32


@MicroKernel
def strip(
    tile: StripTile,
    builder: ir.IRBuilder,
    a: Any,
    words: Any,
    b: Any,
    y: Any,
    y_row: Any,
    rows: Any,
    numbers: Any,
) -> None:
    """y = a b for `rows` rows of `words` words and a panel of columns; the last tile overlaps the one before.

    Sums of integers end by the rows at `numbers`, which all columns share.
    """
    vec, product = Vector(builder, tile.lanes), BY_NAME[tile.product]
    ending = Ending(product.sum, tile.y)
    each, last = I64(tile.rows), builder.sub(rows, I64(tile.rows))
    valid = [tile.valid if j == tile.v - 1 else vec.lanes for j in range(tile.v)]
    nothing = vec.int_constant(0) if product.sum.integer else vec.constant(0.0)
    turns = builder.udiv(words, I64(_UNROLL))

    def one(index: Any) -> None:
        start = builder.mul(index, each)
        start = builder.select(builder.icmp_signed("<", start, last), start, last)
        left = vec.offset(vec.pointer(a), builder.mul(start, I64(tile.pitch)))

        def several(count: int) -> Any:
            def body(index: Any, sums: list[Any]) -> list[Any]:
                x = vec.offset(left, builder.mul(index, I64(WORD * count)))
                w = vec.offset(vec.pointer(b), builder.mul(index, I64(vec.size * tile.packed * count)))
                for k in range(count):
                    weights = [
                        product.load(vec, vec.offset(w, vec.size * (k * tile.packed + j))) for j in range(tile.v)
                    ]
                    for row in range(tile.rows):
                        pair = product.word(vec, vec.offset(x, tile.pitch * row + WORD * k), False)
                        for j, weight in enumerate(weights):
                            place = row * tile.v + j
                            sums[place] = product.add(vec, pair, weight, sums[place])
                return sums

            return body

        sums = repeat(vec, I64(0), turns, [nothing] * (tile.rows * tile.v), several(_UNROLL))
        sums = repeat(vec, builder.mul(turns, I64(_UNROLL)), words, sums, several(1))
        ends = ending.load(vec, vec.pointer(numbers)) if product.sum.integer else {}
        for row in range(tile.rows):
            line = vec.offset(vec.pointer(y), builder.mul(builder.add(start, I64(row)), y_row))
            for j, count in enumerate(valid):
                total, place = sums[row * tile.v + j], vec.offset(line, vec.lanes * tile.y.bytes * j)
                total = ending.emit(vec, total, ends) if product.sum.integer else total
                if tile.y == F32:
                    vec.store_first(total, place, vec.first(count))
                else:
                    _store_bytes(vec, tile.y, total, place, count)

    loop(builder, 0, builder.udiv(builder.add(rows, I64(tile.rows - 1)), each), one)


def _store_bytes(vec: Vector, element: Element, value: Any, place: Any, count: int) -> None:
    """The first lanes of int32 that fit bytes, in as few pieces as their number has bits."""
    narrow = vec.builder.trunc(value, ir.VectorType(ir.IntType(8), vec.lanes))
    first = 0
    while first < count:
        size = 1 << ((count - first).bit_length() - 1)
        lanes = range(first, first + size)
        piece = vec.shuffle(narrow, narrow, lanes) if size > 1 else vec.builder.extract_element(narrow, I32(first))
        store_narrow(Vector(vec.builder, size), element, piece, vec.offset(place, first))
        first += size


_call_strip = strip.caller()


@emitter
def _pair_rows(tile: Any, vec: Vector, source: Any, step: Any, target: Any) -> None:
    """A vector of words, of elements of one row and of the next, `step` bytes on."""
    first = vec.pointer(source)
    low, high = (
        vec.builder.zext(load_narrow(vec, BF16, place), vec.int_type) for place in (first, vec.offset(first, step))
    )
    words = vec.builder.or_(low, vec.builder.shl(high, vec.int_constant(16)))
    vec.store(vec.builder.bitcast(words, vec.type), vec.pointer(target))


@dataclass(frozen=True)
class HalvesTile:
    """`turned`: columns of the right matrix lie side by side, not its rows; operands are `whole` numbers, or floats;
    results have `y` bytes.
    """

    lanes: int
    turned: bool
    whole: bool = False
    y: int = F32.bytes


def _round(tile, microkernel, x, x_step, depth, rows, y, y_step, zero):
    call_round_rows(microkernel, x, x_step, depth, rows, y, y_step)


def _widen(tile, microkernel, x, x_step, depth, rows, y, y_step, zero):
    call_widen_rows(microkernel, x, x_step, depth, rows, y, y_step, zero)


@specialise_on_tile(lambda tile: _widen if tile.whole else _round)
def _narrow(tile, microkernel, x, x_step, depth, rows, y, y_step, zero):
    """Rows of numbers of 16 bits."""


@kernel(
    "strip strip_last narrow_left narrow_right numbers left_zero right_zero a b y offsets items groups grouped "
    "panel_columns columns depth words chunks tiles rows cols a_row b_row b_column y_row a_chunk a_chunk_step a_pitch "
    "line line_step line_pitch panel panel_step panel_row panel_bytes"
)
def matmul_halves(tile, worker, before, part, parts, args):
    """y = a b for each item: its three words of `offsets` are bytes to its matrices.

    Units are (item, group of panels of columns, chunk of tiles of rows). `line`: rows or columns of the right matrix
    in 16 bits; `panel`: words of two rows.
    """
    halves = args.a_chunk + worker * args.a_chunk_step
    lines = args.line + worker * args.line_step
    panels = args.panel + worker * args.panel_step
    vector = 4 * tile.lanes
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
            if tile.turned:
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
                if tile.turned:
                    present = min(tile.lanes, count - column)
                    source = lines + column * args.line_pitch
                    for row in range(0, args.words, tile.lanes):
                        goal = to + row * args.panel_row
                        if present == tile.lanes:
                            transpose_block(tile, source + 4 * row, args.line_pitch, goal, args.panel_row)
                        else:
                            transpose_part(
                                tile, source + 4 * row, args.line_pitch, present, goal, args.panel_row, tile.lanes
                            )
                else:
                    for row in range(args.words):
                        source = lines + 2 * row * args.line_pitch + 2 * column
                        _pair_rows(tile, source, args.line_pitch, to + row * args.panel_row)
        begin, end = args.tiles * chunk // args.chunks, args.tiles * (chunk + 1) // args.chunks
        first = min(begin * args.cols, args.rows - args.cols)
        rows = min(end * args.cols, args.rows) - first
        a = args.a + word(tile, offsets, 0) + first * args.a_row
        _narrow(tile, args.narrow_left, a, args.a_row, args.depth, rows, halves, args.a_pitch, args.left_zero)
        y = args.y + word(tile, offsets, 2) + first * args.y_row + tile.y * first_column
        for panel in range((count + args.panel_columns - 1) // args.panel_columns):
            column = first_column + panel * args.panel_columns
            end_panel = column + args.panel_columns >= args.columns
            _call_strip(
                args.strip_last if end_panel else args.strip,
                halves,
                args.words,
                panels + panel * args.panel_bytes,
                y + tile.y * panel * args.panel_columns,
                args.y_row,
                rows,
                args.numbers,
            )


# --- steps ----------------------------------------------------------------------------------------------------------


def seconds(processor: Processor, stack: Sequence[int], rows: int, depth: int, columns: int) -> float:
    """What products take, by the model; infinite where no instruction multiplies bfloat16."""
    isa, product = processor.isa, product_of_halves(processor.isa)
    if product is None or 1 in (rows, columns):
        return math.inf
    items, words, vectors = math.prod(stack), divide(depth, PAIR), divide(columns, isa.lanes)
    rounding = _ROUND_CYCLES * (rows * divide(depth, isa.lanes) + depth * vectors) + _PACK_CYCLES * words * vectors
    cycles = items * (best_tile(as_seen(isa, product), rows, words, columns)[0] + rounding + _CALL_CYCLES)
    moved = items * (rows * depth + depth * columns + rows * columns) * F32.bytes
    return machine().seconds(cycles, processor.threads) + processor.moving(moved)


def halves_step(processor: Processor, space: Space, work: Product) -> Step | None:
    """One call that computes a stack of products of floats; None where operands do not lie as it needs them."""
    work = work.normal
    isa, found = processor.isa, product_of_halves(processor.isa)
    a, b, y = work.a, work.b, work.y
    apart = (a.column, y.column) != (F32.bytes, F32.bytes) or F32.bytes not in (b.row, b.column)
    if found is None or apart or 1 in (work.rows, work.columns):
        return None
    rounding = MicroRef(round_rows, RoundTile(isa.lanes))
    return pairs_step(processor, space, work, found, {"narrow_left": rounding, "narrow_right": rounding})


def pairs_step(
    processor: Processor,
    space: Space,
    work: Product,
    found: Multiplied,
    given: Args,
    *,
    x: Element = F32,
    y: Element = F32,
) -> Step:
    """One call that computes a stack of products by an instruction of two, of operands of type `x`.

    `given`: how both become numbers of 16 bits, and of integers zero points and what sums end by.
    """
    isa, threads, depth = processor.isa, processor.threads, work.depth
    a, b = work.a, work.b
    turned = b.column != x.bytes and work.columns > 1
    words = divide(depth, PAIR)
    _, v, n = best_tile(as_seen(isa, found), work.rows, words, work.columns)
    vector = isa.lanes * WORD
    pitch, panel_columns = divide(words, isa.lanes) * vector, v * isa.lanes  # rows of words end with whole vectors
    panels, tiles = divide(work.columns, panel_columns), divide(work.rows, n)
    panel_bytes = divide(words, isa.lanes) * isa.lanes * v * vector
    grouped = min(panels, max(1, machine().l2 // 4 // panel_bytes))
    groups, items = divide(panels, grouped), math.prod(work.stack)
    least = min(tiles, divide(work.rows * pitch, machine().l2 // 4))
    chunks = max(least, first_even(threads, items * groups, [(1, 1 + i) for i in range(min(tiles, threads))],
                                   _MANY_UNITS)[1])  # fmt: skip
    count = min(grouped * panel_columns, work.columns)
    line_pitch = pitch if turned else divide(count, 2 * isa.lanes) * vector
    rest = work.columns - (panels - 1) * panel_columns
    whole = StripTile(isa.lanes, v, v, n, pitch, isa.lanes, found.name, y)
    last = replace(whole, v=divide(rest, isa.lanes), valid=(rest - 1) % isa.lanes + 1)
    args: Args = {
        "strip": MicroRef(strip, whole) if panels > 1 else 0,
        "strip_last": MicroRef(strip, last),
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
        **worker_args("a_chunk", space, (divide(tiles, chunks) + 1) * n * pitch, threads),
        "a_pitch": pitch,
        **worker_args("line", space, (count if turned else depth + 1) * line_pitch, threads),
        "line_pitch": line_pitch,
        **worker_args("panel", space, grouped * panel_bytes, threads),
        "panel_row": v * vector,
        "panel_bytes": panel_bytes,
    }
    parts = parts_if_shared(work.flops) if threads > 1 else 0
    return Step(matmul_halves, HalvesTile(isa.lanes, turned, x.integer, y.bytes), args, parts)
