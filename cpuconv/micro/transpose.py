"""Transposition of floats in registers, by log2(lanes) rounds of shuffles (Eklundh 1972)."""

from __future__ import annotations

from typing import Any

from cpuconv.isa.vector import I64, Vector
from cpuconv.micro.intrinsics import emitter

NARROW = 4  # pixels of the narrow transpositions, for rows shorter than a vector


def transpose(vec: Vector, rows: list[Any]) -> list[Any]:
    """The columns of `rows`: lanes vectors of lanes floats. At each round, bit `step` of row and lane trade places."""
    lanes = vec.lanes
    step = lanes // 2
    while step:
        low = [lane if lane & step == 0 else lanes + lane - step for lane in range(lanes)]
        high = [lane + step if lane & step == 0 else lanes + lane for lane in range(lanes)]
        mixed = list(rows)
        for i in range(lanes):
            if i & step == 0:
                mixed[i] = vec.shuffle(rows[i], rows[i + step], low)
                mixed[i + step] = vec.shuffle(rows[i], rows[i + step], high)
        rows = mixed
        step //= 2
    return rows


def join(vec: Vector, pieces: list[Any]) -> Any:
    """One vector of the floats of `pieces` in order; their number is a power of two."""
    while len(pieces) > 1:
        width = list(range(2 * pieces[0].type.count))
        pieces = [vec.shuffle(a, b, width) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    return pieces[0]


def load_present(vec: Vector, source: Any, step: Any, count: int, present: Any) -> list[Any]:
    """`count` vectors, `step` bytes apart; those from number `present` on are not read: zeros (`present` >= 1)."""
    builder = vec.builder
    vectors = []
    for i in range(count):
        there = builder.icmp_signed("<", I64(i), present)
        offset = builder.select(there, builder.mul(step, I64(i)), I64(0))
        vectors.append(builder.select(there, vec.load(vec.offset(source, offset)), vec.constant(0.0)))
    return vectors


def store_present(vec: Vector, vectors: list[Any], target: Any, step: Any, present: Any) -> None:
    """Store the first `present` (>= 1) vectors, `step` bytes apart; in place of each other one, the first again."""
    builder = vec.builder
    for i, value in enumerate(vectors):
        there = builder.icmp_signed("<", I64(i), present)
        offset = builder.select(there, builder.mul(step, I64(i)), I64(0))
        vec.store(builder.select(there, value, vectors[0]), vec.offset(target, offset))


@emitter
def transpose_block(tile: Any, vec: Vector, source: Any, source_step: Any, target: Any, target_step: Any) -> None:
    """target[j][i] = source[i][j] for lanes × lanes floats; byte steps between the rows of each."""
    builder = vec.builder
    source, target = vec.pointer(source), vec.pointer(target)
    rows = [vec.load(vec.offset(source, builder.mul(source_step, I64(i)))) for i in range(vec.lanes)]
    for i, row in enumerate(transpose(vec, rows)):
        vec.store(row, vec.offset(target, builder.mul(target_step, I64(i))))


@emitter
def transpose_part(
    tile: Any, vec: Vector, source: Any, source_step: Any, rows: Any, target: Any, target_step: Any, columns: Any
) -> None:
    """`transpose_block` of `rows` source rows, further ones being zeros, to `columns` target rows, no further ones."""
    loaded = load_present(vec, vec.pointer(source), source_step, vec.lanes, rows)
    store_present(vec, transpose(vec, loaded), vec.pointer(target), target_step, columns)


@emitter
def transpose_from_narrow(
    tile: Any, vec: Vector, source: Any, source_step: Any, rows: Any, target: Any, target_step: Any
) -> None:
    """target[j][i] = source[i][j] for j < NARROW, i < lanes; source rows from `rows` on are zeros."""
    builder = vec.builder
    narrow = Vector(builder, NARROW)
    loaded = load_present(narrow, vec.pointer(source), source_step, vec.lanes, rows)
    parts = [transpose(narrow, loaded[i : i + NARROW]) for i in range(0, vec.lanes, NARROW)]
    target = vec.pointer(target)
    for j in range(NARROW):
        vec.store(join(vec, [part[j] for part in parts]), vec.offset(target, builder.mul(target_step, I64(j))))


@emitter
def transpose_to_narrow(
    tile: Any, vec: Vector, source: Any, source_step: Any, target: Any, target_step: Any, columns: Any
) -> None:
    """target[j][i] = source[i][j] for i < NARROW, j < `columns` of lanes."""
    builder = vec.builder
    narrow = Vector(builder, NARROW)
    source = vec.pointer(source)
    wide = [vec.load(vec.offset(source, builder.mul(source_step, I64(i)))) for i in range(NARROW)]
    rows: list[Any] = []
    for first in range(0, vec.lanes, NARROW):
        lanes = range(first, first + NARROW)
        rows += transpose(narrow, [vec.shuffle(value, value, lanes) for value in wide])
    store_present(narrow, rows, vec.pointer(target), target_step, columns)
