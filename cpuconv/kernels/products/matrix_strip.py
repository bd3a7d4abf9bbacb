"""The GEMM tile on AMX: a tile register of up to 16 pixels of 64 bytes times one of 16 weight vectors.

It has the arguments of `gemm_strip`, and reads pixels, tables and weights in the same order. A segment is a channel
block of 16 groups at one kernel tap: one multiplication of tile registers. A tile's pixels are in one or two tile
registers (rows, or halves of a row), its weight vectors in as many others. Consecutive multiplications reuse weights,
as the instruction is faster then (decision 19). Sums leave registers through memory. The sums of a tile are finished,
pixel by pixel, between the multiplications of the next tile, as the two share no execution port.

A `planar` tile multiplies rows of one matrix by columns of another (`matrix_rows.py`): its pixels are rows, a run-time
stride apart, and its sums are stored to rows, without epilogue.

Source: Intel's optimisation reference manual, chapter on AMX.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from cpuconv.isa.calls import call
from cpuconv.isa.vector import I64, L2, Vector
from cpuconv.kernels.elementwise.epilogue import store_vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

ROWS, ROW_BYTES = 16, 64  # rows of a tile register, and bytes of a row
REGISTERS = 8
I8 = ir.IntType(8)


def halves(rows: int, cols: int) -> list[tuple[int, int, int]]:
    """(row, first column, pixels) of each tile register of pixels; more than 16 columns are two halves."""
    cuts = [(0, cols)] if cols <= ROWS else [(0, -(-cols // 2)), (-(-cols // 2), cols // 2)]
    return [(row, first, count) for row in range(rows) for first, count in cuts]


def fits(v: int, rows: int, cols: int) -> bool:
    """Whether sums, pixels and weights stay in tile registers."""
    if cols > 2 * ROWS:
        return False
    pixels = len(halves(rows, cols))
    return pixels * v + pixels + min(v, 2) <= REGISTERS


def configuration(v: int, rows: int, cols: int) -> np.ndarray:
    """The operand of `ldtilecfg`, uint8 (64,): sums [pixels][v] first, then pixels, then weights; rows of 64 bytes."""
    data = np.zeros(64, np.uint8)
    data[0] = 1  # the palette
    data[16 : 16 + 2 * REGISTERS].view(np.uint16)[:] = ROW_BYTES
    counts = [count for _, _, count in halves(rows, cols)]
    sums = [count for count in counts for _ in range(v)]
    data[48 : 48 + REGISTERS] = (sums + counts + [ROWS] * REGISTERS)[:REGISTERS]
    return data


def _call(builder: ir.IRBuilder, name: str, *arguments: Any) -> None:
    call(builder, f"llvm.x86.{name}", ir.VoidType(), arguments)


@emitter
def load_configuration(tile: Any, vec: Vector, address: Any) -> None:
    """Configure the tile registers of the thread."""
    _call(vec.builder, "ldtilecfg", vec.pointer(address))


@emitter
def release_tiles(tile: Any, vec: Vector) -> None:
    """Release the tile registers."""
    _call(vec.builder, "tilerelease")


@MicroKernel
def matrix_strip(
    tile: GemmTile,
    builder: ir.IRBuilder,
    x: Any,
    xrow: Any,
    table: Any,
    segments: Any,
    kstep: Any,
    w: Any,
    y: Any,
    yrow: Any,
    yvec: Any,
    bias: Any,
    residual: Any,
    suspended_sums: Any,
    prefetch_address: Any,
    turn: Any,
    fetch_step: Any,
    shares: Any,
    tails: Any,
    valid: Any,
    first: Any,
    last: Any,
    width: Any,
) -> None:
    """`gemm_strip` on the tile registers of the thread, which must be configured for it.

    `kstep`: bytes between the parts of pixels, where products are of parts.
    """
    vec = Vector(builder, tile.lanes)
    strip = _Strip(tile, vec, xrow, y, yrow, yvec, bias, residual)
    table = builder.inttoptr(table, I64.as_pointer())
    share = builder.mul(segments, I64(ROW_BYTES * tile.fetch))
    limit = builder.sub(width, I64(tile.cols))
    chunk = builder.udiv(builder.add(builder.sub(segments, I64(1)), I64(strip.pixels)), segments)
    sums = strip.scratch()
    entry = builder.block
    loop, done = builder.append_basic_block("tile"), builder.append_basic_block("tiles.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(first, entry)
    before = builder.phi(I64)  # first column of the previous tile
    before.add_incoming(I64(0), entry)
    start = builder.mul(index, I64(tile.cols))
    start = builder.select(builder.icmp_signed("<", start, limit), start, limit)
    x_now = vec.pointer(builder.add(x, builder.mul(index, xrow) if tile.planar else builder.mul(start, strip.column)))
    place = builder.add(suspended_sums, builder.mul(index, I64(tile.v * strip.pixels * ROW_BYTES)))
    mine = builder.urem(builder.add(index, turn), shares)
    fetch = vec.pointer(builder.add(prefetch_address, builder.mul(mine, share)))
    follows = builder.icmp_signed(">", index, first)
    waiting = builder.select(follows, I64(strip.pixels), I64(0)) if strip.ends else I64(0)

    strip.begin(vec.pointer(place) if tile.resume else None)
    done_pixels = strip.products(x_now, table, segments, kstep, vec.pointer(w), fetch, before, sums, waiting, chunk)
    if strip.ends:
        strip.finish(before, sums, done_pixels, waiting)
    if tile.planar:
        strip.end_rows(vec.offset(strip.y, builder.mul(start, yrow)), sums, valid)
    elif tile.has_epilogue:
        strip.end(vec.pointer(place) if tile.suspend else sums, I64(strip.pixels * ROW_BYTES))
    else:
        strip.end(vec.offset(strip.y, builder.mul(start, strip.row)), yvec)

    following = builder.add(index, I64(1))
    index.add_incoming(following, builder.block)
    before.add_incoming(start, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, done)
    builder.position_at_end(done)
    if strip.ends:
        strip.finish(start, sums, I64(0), I64(strip.pixels))


class _Strip:
    """Emitters of the parts of a tile's code, in execution order."""

    def __init__(
        self, tile: GemmTile, vec: Vector, xrow: Any, y: Any, yrow: Any, yvec: Any, bias: Any, residual: Any
    ) -> None:
        self.tile, self.vec = tile, vec
        self.xrow, self.y, self.yrow, self.yvec, self.residual = xrow, vec.pointer(y), yrow, yvec, residual
        self.halves = halves(tile.rows, tile.cols)
        self.pixels = tile.rows * tile.cols
        self._first_pixels = len(self.halves) * tile.v
        self._first_weights = self._first_pixels + len(self.halves)
        self.row = I64(ROW_BYTES)
        self.column = vec.builder.sdiv(xrow, I64(tile.cols)) if tile.planar else I64(4 * tile.xs)  # between pixels
        self.ends = tile.has_epilogue and not tile.suspend
        self._rows = [tile.epilogue.load(vec, vec.pointer(bias), j) for j in range(tile.used * self.ends)]

    def scratch(self) -> Any:
        """Allocate stack memory for the sums of a tile: [v][pixels][lanes]."""
        place = self.vec.builder.alloca(I8, I64(self.tile.v * self.pixels * ROW_BYTES))
        place.align = ROW_BYTES
        return place

    def _sums(self) -> list[tuple[int, int, int]]:
        """Each register of sums, with its weight vector and the byte offset of its first pixel."""
        found, pixel = [], 0
        for half, (_, _, count) in enumerate(self.halves):
            found += [(half * self.tile.v + j, j, pixel * ROW_BYTES) for j in range(self.tile.used)]
            pixel += count
        return found

    def begin(self, suspended_sums: Any) -> None:
        """Load the sums of the previous part, or zero them."""
        for register, j, at in self._sums():
            if suspended_sums is None:
                _call(self.vec.builder, "tilezero", I8(register))
            else:
                place = self.vec.offset(suspended_sums, j * self.pixels * ROW_BYTES + at)
                _call(self.vec.builder, "tileloadd64", I8(register), place, self.row)

    def end(self, target: Any, apart: Any) -> None:
        """Store the sums to memory, those of two weight vectors `apart` bytes apart."""
        builder, vec = self.vec.builder, self.vec
        for register, j, at in self._sums():
            place = vec.offset(vec.offset(target, builder.mul(apart, I64(j))), at)
            _call(builder, "tilestored64", I8(register), place, self.row)

    def end_rows(self, y: Any, sums: Any, valid: Any) -> None:
        """Store the sums to rows of a matrix; those of a last vector with fewer columns pass through memory."""
        builder, vec, last = self.vec.builder, self.vec, self.tile.used - 1
        for register, j, at in self._sums():
            first = builder.add(builder.mul(self.yvec, I64(j)), builder.mul(self.yrow, I64(at // ROW_BYTES)))
            place, row = vec.offset(y, first), self.yrow
            if self.tile.masked and j == last:
                place, row = vec.offset(sums, at), self.row
            _call(builder, "tilestored64", I8(register), place, row)
        if self.tile.masked:
            mask, column = first_lanes(vec, valid), vec.offset(y, builder.mul(self.yvec, I64(last)))

            def one(pixel: Any) -> None:
                value = vec.load(vec.offset(sums, builder.mul(pixel, self.row)), align=ROW_BYTES)
                vec.store_masked(value, vec.offset(column, builder.mul(pixel, self.yrow)), mask)

            loop(builder, 0, self.pixels, one)

    def products(
        self,
        x: Any,
        table: Any,
        segments: Any,
        part_step: Any,
        w: Any,
        fetch: Any,
        before: Any,
        sums: Any,
        waiting: Any,
        chunk: Any,
    ) -> Any:
        """Multiply all segments, and finish some of the `waiting` pixels of the previous tile per segment; return how
        many are done."""
        builder, vec, tile = self.vec.builder, self.vec, self.tile
        entry = builder.block
        loop, end = builder.append_basic_block("segment"), builder.append_basic_block("segments.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        index, w_now, fetch_now, pixel = (builder.phi(kind) for kind in (I64, w.type, fetch.type, I64))
        for phi, value in ((index, I64(0)), (w_now, w), (fetch_now, fetch), (pixel, I64(0))):
            phi.add_incoming(value, entry)
        x_now = vec.offset(x, builder.load(builder.gep(table, [index])))
        self._multiply(x_now, w_now, part_step)
        for line in range(tile.fetch):
            vec.prefetch(vec.offset(fetch_now, line * vec.size), L2)
        pixel_next = pixel
        if self.ends:
            until = builder.add(pixel, chunk)
            until = builder.select(builder.icmp_signed("<", until, waiting), until, waiting)
            self.finish(before, sums, pixel, until)
            pixel_next = until
        following = builder.add(index, I64(1))
        w_next = vec.offset(w_now, tile.unroll * tile.vectors * vec.size)
        fetch_next = vec.offset(fetch_now, tile.fetch * vec.size)
        for phi, value in ((index, following), (w_now, w_next), (fetch_now, fetch_next), (pixel, pixel_next)):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, segments), loop, end)
        builder.position_at_end(end)
        return pixel_next

    def _multiply(self, x: Any, w: Any, part_step: Any) -> None:
        """Multiply a segment; of two parts in turn that a register can hold, it is loaded once."""
        builder, vec, tile = self.vec.builder, self.vec, self.tile
        product, both = BY_NAME[tile.product], tile.v > 1 and self._first_weights + 1 < REGISTERS
        held: dict[int, tuple[int, int]] = {}  # part and vector or half, by register

        def load(register: int, what: tuple[int, int], place: Any, step: Any) -> int:
            if held.get(register) != what:
                _call(builder, "tileloadd64", I8(register), place(), step)
                held[register] = what
            return register

        def weights(part: int, j: int) -> Any:
            return vec.offset(w, (part * tile.unroll * tile.v + j) * vec.size)

        def pixels(part: int, row: int, first: int) -> Any:
            along = builder.mul(self.column, I64(first)) if tile.planar else 4 * first * tile.xs
            start = vec.offset(vec.offset(x, builder.mul(self.xrow, I64(row))), along)
            return vec.offset(start, builder.mul(part_step, I64(part))) if part else start

        for part, of_weights in product.pairs or ((0, 0),):
            for j in range(tile.used):
                register = self._first_weights + (j % 2 if both else 0)
                loaded = load(register, (of_weights, j), partial(weights, of_weights, j), I64(tile.v * vec.size))
                for half, (row, first, _) in enumerate(self.halves):
                    place = partial(pixels, part, row, first)
                    pixel = load(self._first_pixels + half, (part, half), place, self.column)
                    _call(builder, product.instruction, I8(half * tile.v + j), I8(pixel), I8(loaded))

    def finish(self, start: Any, sums: Any, first: Any, last: Any) -> None:
        """Apply the epilogue to pixels first … last-1 of the tile that begins at column `start`, and store them."""
        builder, vec, tile = self.vec.builder, self.vec, self.tile
        entry = builder.block
        check, loop = builder.append_basic_block("pixels"), builder.append_basic_block("pixel")
        end = builder.append_basic_block("pixels.done")
        builder.branch(check)
        builder.position_at_end(check)
        pixel = builder.phi(I64)
        pixel.add_incoming(first, entry)
        builder.cbranch(builder.icmp_signed("<", pixel, last), loop, end)
        builder.position_at_end(loop)
        if tile.row_pixels:
            position = builder.add(start, pixel)
            row, col = builder.udiv(position, I64(tile.row_pixels)), builder.urem(position, I64(tile.row_pixels))
        else:
            row, col = builder.udiv(pixel, I64(tile.cols)), builder.urem(pixel, I64(tile.cols))
            col = builder.add(start, col)
        place = builder.add(builder.mul(self.yrow, row), builder.mul(col, I64(4 * tile.ys)))
        target = vec.offset(self.y, place)
        if tile.row_pixels:
            stored = builder.append_basic_block("pixel.stored")
            following = builder.append_basic_block("pixel.next")
            builder.cbranch(builder.icmp_signed("<", col, I64(tile.valid_pixels)), stored, following)
            builder.position_at_end(stored)
        source = vec.offset(sums, builder.mul(pixel, self.row))
        for j in range(tile.used + tile.zeros):
            block, part = divmod(j, tile.vectors_per_pixel)
            at = vec.offset(
                vec.offset(target, builder.mul(self.yvec, I64(block))), part * vec.lanes * tile.y.part_bytes
            )
            if j >= tile.used:
                store_vector(vec, tile.y, None, at)
                continue
            total = vec.load(vec.offset(source, j * self.pixels * ROW_BYTES), align=ROW_BYTES)
            total = builder.bitcast(total, BY_NAME[tile.product].sums_type(vec))
            valid = tile.valid if j == tile.used - 1 else 0
            tile.epilogue.store(vec, total, self._rows[j], at, self.residual, valid=valid)
        if tile.row_pixels:
            builder.branch(following)
            builder.position_at_end(following)
        pixel.add_incoming(builder.add(pixel, I64(1)), builder.block)
        builder.branch(check)
        builder.position_at_end(end)


_CYCLES = ((4, 11.1), (8, 13.3), (14, 16.6), (16, 17.7))  # (pixels, cycles) of a multiplication, measured (decision 19)
_PAIR_LOADS = 1.15  # load factor of 2 x 2 tiles, whose operands come from L1 and L2
_SINGLE_LOADS = 1.5  # load factor of other tiles
PIXEL_CYCLES = 5.0  # cycles to finish a vector of sums, with nothing else running
_STORE = 14.0  # cycles that a register's store adds to its multiplications, where it is not finished (decision 19)
_TILE = 30.0  # overhead of a tile, in cycles


def matrix_cycles(
    v: int, rows: int, cols: int, segments: float, pixel: float = PIXEL_CYCLES, finished: bool = True
) -> float:
    """Modelled cycles of a tile: of multiplications by `segments` registers per weight vector, or longer epilogues, and
    of stores that do not overlap where sums are not `finished`.

    `pixel`: cycles to finish a vector of sums.
    """
    parts = halves(rows, cols)
    points, cycles = zip(*_CYCLES, strict=True)
    product = sum(float(np.interp(count, points, cycles)) for _, _, count in parts) * v
    loads = _PAIR_LOADS if min(v, len(parts)) > 1 else _SINGLE_LOADS
    if not finished:
        return product * loads * segments + len(parts) * v * _STORE + _TILE
    return max(product * loads * segments, rows * cols * v * pixel) + _TILE


def shapes(height: int, width: int) -> Sequence[tuple[int, int]]:
    """Candidate (rows, columns) of tiles on a plane, which fill tile registers as far as they can."""
    found = set()
    for rows in (1, 2):
        for most in (ROWS, 2 * ROWS) if rows == 1 else (ROWS,):
            if rows <= height:
                found.add((rows, -(-width // -(-width // most))))
    return sorted(found)
