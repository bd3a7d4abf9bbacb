"""Transposition of float32 in registers: loads gather quads of four float32, which are then transposed 4 x 4.

A vector of `lanes` float32 has `lanes` / 4 quads, loaded from rows that are four apart. Two rounds of shuffles within
quads, which are fast on CPUs, then give columns of the whole block. The loads, which insert quads, replace the other
rounds of a transposition by halves (Eklundh 1972).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.runtime.code.llvm import ir

NARROW = 4  # float32 of a quad; pixels of the narrow transpositions, for rows shorter than a vector


def transpose_quads(vec: Vector, rows: list[Any]) -> list[Any]:
    """Transpose within quads: the quads of the four results are the columns of the quads of four `rows`."""

    def zip_(a: Any, b: Any, order: tuple[int, ...]) -> Any:
        """Shuffle each quad: the elements `order` of a's quad (0 to 3) and b's (4 to 7)."""
        return vec.shuffle(a, b, [q + i % 4 + vec.lanes * (i // 4) for q in range(0, vec.lanes, 4) for i in order])

    low, high = (0, 4, 1, 5), (2, 6, 3, 7)  # interleave single elements
    first, second = (0, 1, 4, 5), (2, 3, 6, 7)  # interleave pairs
    a, b, c, d = rows
    made = []
    for order in (low, high):
        ab, cd = zip_(a, b, order), zip_(c, d, order)
        made += [zip_(ab, cd, first), zip_(ab, cd, second)]
    return made


def join(vec: Vector, pieces: Sequence[Any]) -> Any:
    """Concatenate `pieces`, whose number is a power of two, to one vector."""
    while len(pieces) > 1:
        width = list(range(2 * pieces[0].type.count))
        pieces = [vec.shuffle(a, b, width) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    return pieces[0]


def four_columns(vec: Vector, row: Callable[[int], Any], at: int = 0) -> list[Any]:
    """Load four columns of `lanes` rows at the addresses row(0), row(1), …, from byte `at` of each row on."""
    narrow = Vector(vec.builder, NARROW)

    def gather(first: int) -> Any:
        return join(vec, [narrow.load(vec.offset(row(i), at)) for i in range(first, vec.lanes, NARROW)])

    return transpose_quads(vec, [gather(first) for first in range(NARROW)])


def keep_first(vec: Vector, value: Any, count: Any, size: int = 4) -> Any:
    """Zero all elements of `value` but the first `count`; an element has `size` bytes."""
    if size == 4:
        return vec.builder.select(first_lanes(vec, count), value, vec.constant(0.0))
    narrow = ir.VectorType(ir.IntType(8 * size), vec.size // size)
    elements, nothing = vec.builder.bitcast(value, narrow), ir.Constant(narrow, [0] * narrow.count)
    return vec.builder.bitcast(vec.builder.select(first_elements(vec, count, size), elements, nothing), vec.type)


def first_elements(vec: Vector, count: Any, size: int) -> Any:
    """A mask of the first `count` elements of a vector, of `size` bytes each, 1 or 2."""
    kind, places = ir.IntType(8 * size), vec.size // size
    narrow = ir.VectorType(kind, places)
    first = vec.builder.insert_element(ir.Constant(narrow, ir.Undefined), vec.builder.trunc(count, kind), I32(0))
    counts = vec.shuffle(first, first, [0] * places)
    return vec.builder.icmp_signed("<", ir.Constant(narrow, list(range(places))), counts)


def first_lanes(vec: Vector, count: Any) -> Any:
    """A mask of the first `count` lanes."""
    lanes = vec.int_type
    narrow = vec.builder.trunc(count, lanes.element)
    first = vec.builder.insert_element(ir.Constant(lanes, ir.Undefined), narrow, I32(0))
    counts = vec.shuffle(first, first, [0] * vec.lanes)
    return vec.builder.icmp_signed("<", ir.Constant(lanes, list(range(vec.lanes))), counts)


def present_rows(vec: Vector, start: Any, step: Any, present: Any) -> Callable[[int], Any]:
    """Addresses of rows `step` bytes apart; rows from index `present` (>= 1) on repeat the first one."""
    builder = vec.builder

    def row(i: int) -> Any:
        there = builder.icmp_signed("<", I64(i), present)
        return vec.offset(start, builder.select(there, builder.mul(step, I64(i)), I64(0)))

    return row


def load_present(vec: Vector, source: Any, step: Any, count: int, present: Any) -> list[Any]:
    """Load `count` vectors, `step` bytes apart; those from index `present` (>= 1) on repeat the first one."""
    row = present_rows(vec, source, step, present)
    return [vec.load(row(i)) for i in range(count)]


def store_present(vec: Vector, vectors: list[Any], target: Any, step: Any, present: Any) -> None:
    """Store the first `present` (>= 1) vectors, `step` bytes apart; the other stores repeat the first one."""
    row = present_rows(vec, target, step, present)
    for i, value in enumerate(vectors):
        there = vec.builder.icmp_signed("<", I64(i), present)
        vec.store(vec.builder.select(there, value, vectors[0]), row(i))


@emitter
def transpose_block(tile: Any, vec: Vector, source: Any, source_step: Any, target: Any, target_step: Any) -> None:
    """target[j][i] = source[i][j] for lanes x lanes float32; byte strides of the rows of each."""
    rows = [vec.offset(vec.pointer(source), vec.builder.mul(source_step, I64(i))) for i in range(vec.lanes)]
    target = vec.pointer(target)
    for first in range(0, vec.lanes, NARROW):
        columns = four_columns(vec, rows.__getitem__, 4 * first)
        for j, column in enumerate(columns, first):
            vec.store(column, vec.offset(target, vec.builder.mul(target_step, I64(j))))


@emitter
def transpose_part(
    tile: Any, vec: Vector, source: Any, source_step: Any, rows: Any, target: Any, target_step: Any, columns: Any
) -> None:
    """`transpose_block` of the first `rows` source rows, the others being zero, to the first `columns` target rows."""
    row = present_rows(vec, vec.pointer(source), source_step, rows)
    addresses = [row(i) for i in range(vec.lanes)]
    made = []
    for first in range(0, vec.lanes, NARROW):
        made += four_columns(vec, addresses.__getitem__, 4 * first)
    kept = [keep_first(vec, column, rows) for column in made]
    store_present(vec, kept, vec.pointer(target), target_step, columns)


@emitter
def transpose_from_narrow(
    tile: Any, vec: Vector, source: Any, source_step: Any, rows: Any, target: Any, target_step: Any
) -> None:
    """target[j][i] = source[i][j] for j < NARROW, i < lanes; source rows from `rows` on are taken as zero."""
    columns = four_columns(vec, present_rows(vec, vec.pointer(source), source_step, rows))
    target = vec.pointer(target)
    for j, column in enumerate(columns):
        vec.store(keep_first(vec, column, rows), vec.offset(target, vec.builder.mul(target_step, I64(j))))


@emitter
def transpose_to_narrow(
    tile: Any, vec: Vector, source: Any, source_step: Any, target: Any, target_step: Any, columns: Any
) -> None:
    """target[j][i] = source[i][j] for i < NARROW, j < `columns`, at most `lanes`."""
    source = vec.pointer(source)
    wide = [vec.load(vec.offset(source, vec.builder.mul(source_step, I64(i)))) for i in range(NARROW)]
    quads = transpose_quads(vec, wide)
    rows = [
        vec.shuffle(quads[j % NARROW], quads[j % NARROW], range(j - j % NARROW, j - j % NARROW + NARROW))
        for j in range(vec.lanes)
    ]
    store_present(Vector(vec.builder, NARROW), rows, vec.pointer(target), target_step, columns)
