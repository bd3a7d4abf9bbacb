"""Transposition of 1- and 2-byte elements in registers: between channel rows and vectors of 32-bit groups.

A group has the elements of a few adjacent channels: 4 of one byte, or 2 of two bytes. 16 bytes are loaded from each
channel's row. The order of the loads makes the groups of a pixel adjacent after two steps: interleaving the rows of
each group, and a transposition by quads of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import NARROW, join, keep_first, present_rows, transpose_quads
from cpuconv.runtime.code.llvm import ir

QUAD = 16  # bytes loaded from a row at a time


def within_quads(vec: Vector, size: int, a: Any, b: Any, places: Sequence[int]) -> Any:
    """Shuffle every 16 bytes: elements of `size` bytes at `places` of a's 16 bytes, followed by b's."""
    count, here = vec.size // size, QUAD // size
    kind = ir.VectorType(ir.IntType(8 * size), count)
    lanes = [quad + place % here + count * (place // here) for quad in range(0, count, here) for place in places]
    first, second = (vec.builder.bitcast(value, kind) for value in (a, b))
    return vec.builder.bitcast(vec.shuffle(first, second, lanes), vec.type)


def zipped(vec: Vector, size: int, a: Any, b: Any) -> list[Any]:
    """Interleave elements of a and b within every 16 bytes: those of the first half, and those of the second."""
    count = QUAD // size
    halves = range(count // 2), range(count // 2, count)
    return [within_quads(vec, size, a, b, [at + side for at in half for side in (0, count)]) for half in halves]


def interleaved(vec: Vector, size: int, rows: Sequence[Any]) -> list[Any]:
    """Interleave the elements of all rows within every 16 bytes; the number of rows and results is a power of two."""
    if len(rows) == 1:
        return list(rows)
    half = len(rows) // 2
    pairs = zip(interleaved(vec, size, rows[:half]), interleaved(vec, size, rows[half:]), strict=True)
    return [value for a, b in pairs for value in zipped(vec, size * half, a, b)]


def deinterleaved(vec: Vector, size: int, vectors: Sequence[Any]) -> list[Any]:
    """Undo `interleaved` for 32-bit groups."""
    each, here = len(vectors), QUAD // size
    order = [place for row in range(each) for place in range(row, here, each)]
    sorted_ = [within_quads(vec, size, value, value, order) for value in vectors]
    return zipped(vec, QUAD // 2, *sorted_) if each == 2 else transpose_quads(vec, sorted_)


def _quads_of_words(vec: Vector, size: int, row: Callable[[int], Any]) -> list[list[Any]]:
    """[pixel // 4][i]: for four pixels, the groups 4·lane + i in each quad of lanes, from rows at row(channel)."""
    quad, each = Vector(vec.builder, NARROW), 4 // size

    def gathered(first: int, number: int) -> Any:
        words = range(first, vec.lanes, NARROW)
        return join(vec, [quad.load(row(word * each + number), align=1) for word in words])

    made = [interleaved(vec, size, [gathered(i, number) for number in range(each)]) for i in range(NARROW)]
    return [list(four) for four in zip(*made, strict=True)]


def _pack(tile: Any, vec: Vector, row: Callable[[int], Any], target: Any, step: Any, valid: Any) -> None:
    quads = _quads_of_words(vec, tile.bytes, row)
    for first, four in enumerate(quads):
        for i, pixel in enumerate(transpose_quads(vec, four)):
            value = pixel if valid is None else keep_first(vec, pixel, valid, tile.bytes)
            vec.store(value, vec.offset(target, vec.builder.mul(step, I64(NARROW * first + i))))


@emitter
def words_from_planes(tile: Any, vec: Vector, source: Any, row_step: Any, target: Any, step: Any) -> None:
    """Transpose 16 bytes of each channel row, `row_step` bytes apart, to vectors of groups per pixel, `step` apart."""
    source = vec.pointer(source)
    _pack(tile, vec, _every_row(vec, source, row_step), vec.pointer(target), step, None)


@emitter
def words_from_some_planes(
    tile: Any, vec: Vector, source: Any, row_step: Any, valid: Any, target: Any, step: Any
) -> None:
    """`words_from_planes` for the first `valid` (>= 1) channels; the others are zero, and not read."""
    row = present_rows(vec, vec.pointer(source), row_step, valid)
    _pack(tile, vec, row, vec.pointer(target), step, valid)


def _every_row(vec: Vector, start: Any, step: Any) -> Callable[[int], Any]:
    return lambda number: vec.offset(start, vec.builder.mul(step, I64(number)))


def _rows_of_quads(tile: Any, vec: Vector, source: Any, step: Any) -> dict[int, Any]:
    """16 bytes of pixels per channel, from one vector of groups per pixel."""
    quad, each = Vector(vec.builder, NARROW), 4 // tile.bytes
    columns = []
    for first in range(0, NARROW * each, NARROW):
        pixels = [vec.load(vec.offset(source, vec.builder.mul(step, I64(first + i)))) for i in range(NARROW)]
        columns.append(transpose_quads(vec, pixels))
    rows: dict[int, Any] = {}
    for i in range(NARROW):
        for number, row in enumerate(deinterleaved(vec, tile.bytes, [four[i] for four in columns])):
            for word in range(i, vec.lanes, NARROW):
                rows[word * each + number] = quad.shuffle(row, row, range(word - i, word - i + NARROW))
    return rows


@emitter
def planes_from_words(tile: Any, vec: Vector, source: Any, step: Any, target: Any, row_step: Any) -> None:
    """Transpose vectors of groups to channel rows: the inverse of `words_from_planes`."""
    quad, row = Vector(vec.builder, NARROW), _every_row(vec, vec.pointer(target), row_step)
    for channel, value in _rows_of_quads(tile, vec, vec.pointer(source), step).items():
        quad.store(value, row(channel), align=1)


@emitter
def lines_from_words(tile: Any, vec: Vector, source: Any, step: Any, target: Any, row_step: Any) -> None:
    """`planes_from_words` for a vector of pixels of each row, which are collected on the stack: rows a power of two
    apart would evict each other from the cache between two stores of 16 bytes."""
    builder, quad, channels = vec.builder, Vector(vec.builder, NARROW), vec.size // tile.bytes
    with builder.goto_entry_block():
        stack = builder.alloca(ir.IntType(8), channels * vec.size)
    stack.align = vec.size
    source, target, pixels = vec.pointer(source), vec.pointer(target), QUAD // tile.bytes

    def collect(at: Any) -> None:
        first = vec.offset(source, builder.mul(step, builder.mul(at, I64(pixels))))
        place = vec.offset(stack, builder.mul(at, I64(QUAD)))
        for channel, value in _rows_of_quads(tile, vec, first, step).items():
            quad.store(value, vec.offset(place, channel * vec.size))

    def write(channel: Any) -> None:
        value = vec.load(vec.offset(stack, builder.mul(channel, I64(vec.size))))
        vec.store(value, vec.offset(target, builder.mul(channel, row_step)), align=1)

    loop(builder, 0, vec.size // QUAD, collect)
    loop(builder, 0, channels, write)


@emitter
def some_planes_from_words(
    tile: Any, vec: Vector, source: Any, step: Any, target: Any, row_step: Any, valid: Any
) -> None:
    """`planes_from_words` for the first `valid` (>= 1) channels; rows of others are not written."""
    quad, row = Vector(vec.builder, NARROW), present_rows(vec, vec.pointer(target), row_step, valid)
    rows = _rows_of_quads(tile, vec, vec.pointer(source), step)
    for channel, value in rows.items():
        there = vec.builder.icmp_signed("<", I64(channel), valid)
        quad.store(vec.builder.select(there, value, rows[0]), row(channel), align=1)
