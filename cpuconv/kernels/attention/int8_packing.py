"""Packing of int8 and uint8 matrices as 32-bit groups along the depth, with sums of their elements.

A product of operands less their zero points, (a - p) and (b - q), is Σ a·b - q·Σ a - p·Σ b + depth·p·q, so operands
are multiplied as they are. Each row of the left matrix and each column of the right one gets a term from its sum.
Elements become those that the CPU's instruction takes: the sign bit is flipped, or they are widened to int16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import S8, S32, U8, Element
from cpuconv.isa.typed import load_as_int, store_int
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.fold import fold_lanes, repeat
from cpuconv.kernels.emit.product import BY_NAME, WORD
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

GROUP = 4  # rows whose sums are folded together
_SHIFTS = {(U8, S8): -128, (S8, U8): 128}


def shift(x: Element, y: Element) -> int:
    """Offset added when elements of type `x` are stored as `y`."""
    return _SHIFTS.get((x, y), 0)


@dataclass(frozen=True)
class PackTile:
    """Tile: the vector width, the type of the elements in memory, that of the packed ones, and the kind of the products
    (`emit/product.py`).
    """

    lanes: int
    x: Element
    y: Element
    product: str


@MicroKernel
def pack_rows(
    tile: PackTile,
    builder: ir.IRBuilder,
    x: Any,
    x_row: Any,
    rows: Any,
    depth: Any,
    y: Any,
    y_row: Any,
    terms: Any,
    factor: Any,
    constant: Any,
) -> None:
    """Convert `rows` contiguous rows of `depth` elements, padded with zeros to vectors; terms = constant + factor·sum.

    `x_row` and `y_row` are bytes between rows, `terms` has an int32 per row.
    """
    vec = Vector(builder, tile.lanes)
    factor, constant = (builder.trunc(each, I32) for each in (factor, constant))
    zero, added = vec.int_constant(0), vec.int_constant(shift(tile.x, tile.y))

    def group(start: Any, count: int) -> None:
        numbers = [builder.add(start, I64(at)) for at in range(count)]
        sources = [vec.offset(vec.pointer(x), builder.mul(number, x_row)) for number in numbers]
        targets = [vec.offset(vec.pointer(y), builder.mul(number, y_row)) for number in numbers]

        def convert(index: Any, sums: list[Any], mask: Any = None) -> list[Any]:
            offsets = [builder.mul(index, I64(vec.lanes * size)) for size in (tile.x.bytes, tile.y.bytes)]
            values = [load_as_int(vec, tile.x, vec.offset(source, offsets[0]), mask) for source in sources]
            values = [builder.add(value, added) for value in values]
            values = values if mask is None else [builder.select(mask, value, zero) for value in values]
            for value, target in zip(values, targets, strict=True):
                store_int(vec, tile.y, value, vec.offset(target, offsets[1]), fits=True)
            return [builder.add(total, value) for total, value in zip(sums, values, strict=True)]

        sums = along(vec, depth, [zero] * count, convert)
        store_terms(vec, terms, numbers, sums, factor, constant)

    by_groups(vec, rows, GROUP, group)


def along(vec: Vector, size: Any, values: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
    """Emit values = body(index, values) for each whole vector of `size` elements, and with a mask for a last part."""
    builder = vec.builder
    whole, rest = builder.udiv(size, I64(vec.lanes)), builder.urem(size, I64(vec.lanes))
    end = builder.add(whole, builder.zext(builder.icmp_signed("!=", rest, I64(0)), I64))
    present = first_lanes(vec, rest)
    values = repeat(vec, I64(0), whole, values, body)
    return list(repeat(vec, whole, end, values, lambda index, values: body(index, values, present)))


def store_terms(vec: Vector, terms: Any, numbers: list[Any], sums: list[Any], factor: Any, constant: Any) -> None:
    """terms[number] = constant + factor · sum of the lanes, for each of some rows, a power of two."""
    builder = vec.builder
    total = fold_lanes(vec, lambda vec, a, b: vec.builder.add(a, b), sums)
    for at, number in enumerate(numbers):
        scalar = builder.extract_element(total, I32(at * (vec.lanes // len(sums))))
        place = vec.offset(vec.pointer(terms), builder.mul(number, I64(S32.bytes)))
        builder.store(builder.add(constant, builder.mul(factor, scalar)), builder.bitcast(place, I32.as_pointer()))


def by_groups(vec: Vector, rows: Any, size: int, group: Callable[[Any, int], None]) -> None:
    """Emit loops that call group(first, size), then group(first, 1) for the remainder of the rows."""
    builder = vec.builder

    def whole_group(index: Any, values: list[Any]) -> list[Any]:
        group(builder.mul(index, I64(size)), size)
        return values

    def single_row(index: Any, values: list[Any]) -> list[Any]:
        group(index, 1)
        return values

    groups = builder.udiv(rows, I64(size))
    repeat(vec, I64(0), groups, [], whole_group)
    repeat(vec, builder.mul(groups, I64(size)), rows, [], single_row)


call_pack_rows = pack_rows.caller()


@MicroKernel
def pack_groups(
    tile: PackTile,
    builder: ir.IRBuilder,
    x: Any,
    x_row: Any,
    rows: Any,
    columns: Any,
    y: Any,
    y_row: Any,
    terms: Any,
    factor: Any,
) -> None:
    """Store 32-bit groups of adjacent rows, lanes being columns; terms = factor·sum of each column.

    Rows are contiguous, `x_row` bytes apart; groups after the last row have zeros. `y_row` is bytes between groups of a
    column. `terms` has an int32 per column, to the end of a vector.
    """
    vec = Vector(builder, tile.lanes)
    product, count, bits = BY_NAME[tile.product], WORD // tile.y.bytes, 8 * tile.y.bytes
    ones = vec.int_constant(sum(1 << bits * at for at in range(count)))
    low, added = vec.int_constant((1 << bits) - 1), vec.int_constant(shift(tile.x, tile.y))
    factor = vec.splat(builder.trunc(factor, I32))
    last = builder.udiv(builder.sub(rows, I64(1)), I64(count))  # the last group has 1 … count rows
    present = builder.sub(rows, builder.mul(last, I64(count)))
    zero = vec.int_constant(0)

    def column(index: Any, values: list[Any], mask: Any = None) -> list[Any]:
        source = vec.offset(vec.pointer(x), builder.mul(index, I64(vec.lanes)))
        target = vec.offset(vec.pointer(y), builder.mul(index, I64(vec.size)))

        def element(place: Any, at: int, partial: bool) -> Any:
            step = builder.mul(x_row, I64(at))
            there = builder.icmp_signed("<", I64(at), present)
            place = vec.offset(place, builder.select(there, step, I64(0)) if partial else step)
            value = builder.add(load_as_int(vec, tile.x, place, mask), added)
            value = builder.select(there, value, zero) if partial else value
            return builder.shl(builder.and_(value, low), vec.int_constant(bits * at))

        def group(number: Any, sums: list[Any], partial: bool = False) -> list[Any]:
            place = vec.offset(source, builder.mul(number, builder.mul(x_row, I64(count))))
            word = element(place, 0, partial)
            for at in range(1, count):
                word = builder.or_(word, element(place, at, partial))
            vec.store(builder.bitcast(word, vec.type), vec.offset(target, builder.mul(number, y_row)))
            return [product.add(vec, ones, word, sums[0])]

        (total,) = group(last, repeat(vec, I64(0), last, [zero], group), True)
        place = vec.offset(vec.pointer(terms), builder.mul(index, I64(vec.size)))
        vec.store(builder.bitcast(builder.mul(factor, total), vec.type), place)
        return values

    along(vec, columns, [], column)


call_pack_groups = pack_groups.caller()
