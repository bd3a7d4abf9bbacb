"""Quantised weights of values from int32 products, and quantised outputs from their int32 sums.

Every rounding of a file's QuantizeLinear is kept: scores are rounded, also after each mask, and so are weights. Rows
are reduced together, as in `softmax.py`. With AVX-512, powers of quantised scores are products of two table entries:
d = 16 i + j below the largest score has the weight e^(-16 i scale) · e^(-j scale).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, S32, Element
from cpuconv.isa import avx512
from cpuconv.isa.typed import store_float, store_int
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.attention.int8_packing import along, by_groups, store_terms
from cpuconv.kernels.elementwise.exponential import exp_below
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import Fold, fold_lanes
from cpuconv.kernels.emit.loop import loop
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

TABLE = 16  # entries of a table of powers
_LOWEST = -(1 << 30)  # less than any score


def _larger(vec: Vector, a: Any, b: Any) -> Any:
    """The larger of int32 lanes."""
    return vec.builder.select(vec.builder.icmp_signed(">", a, b), a, b)


@dataclass(frozen=True)
class ScoresTile:
    """Tile of `weigh_rows`: the vector width, rows that are reduced together, a power of two, masks, whether scores are
    rounded, and the type of the weights.
    """

    lanes: int
    group: int
    masks: int
    rounded: bool
    y: Element


@MicroKernel
def weigh_rows(
    tile: ScoresTile,
    builder: ir.IRBuilder,
    x: Any,
    x_row: Any,
    rows: Any,
    keys: Any,
    row_terms: Any,
    key_terms: Any,
    mask: Any,
    mask_row: Any,
    other_mask: Any,
    other_mask_row: Any,
    numbers: Any,
    y: Any,
    y_row: Any,
    terms: Any,
    factor: Any,
    constant: Any,
) -> None:
    """Compute quantised softmax(scores) of `rows` rows of `keys` int32 products x, which are overwritten.

    A score is factor·(x + the terms of its row and key), then rounded; masks are added one by one, and rounded. Weights
    are padded with zeros to a vector; terms = constant + factor·sum of a row's weights.

    Parameters
    ----------
    mask, other_mask
        float32 masks; rows are contiguous, `mask_row` and `other_mask_row` bytes apart.
    numbers
        float32: factor of the products, lowest, highest and scale of scores; for each mask the inverse of the scale and
        the same three; inverse of the scale, lowest, highest and zero point of weights; both tables of `TABLE` powers.
        Bounds are less zero points.
    """
    vec = Math(builder, tile.lanes)
    x, y, numbers, row_terms, key_terms = (vec.pointer(each) for each in (x, y, numbers, row_terms, key_terms))
    powers = tile.rounded and avx512.usable(vec)  # whether scores are integers until powers are taken
    given = [vec.broadcast(vec.offset(numbers, F32.bytes * at)) for at in range(4 * (tile.masks + 2))]
    stages = [given[at : at + 4] for at in range(0, len(given), 4)]
    inverse, _, high, zero = stages.pop()
    tables = [vec.load(vec.offset(numbers, F32.bytes * (len(given) + TABLE * at))) for at in range(2)] if powers else []
    zero, nothing = builder.fptosi(zero, vec.int_type), vec.int_constant(0)
    factor, constant = (builder.trunc(each, I32) for each in (factor, constant))
    places = [(vec.pointer(mask), mask_row), (vec.pointer(other_mask), other_mask_row)][: tile.masks]
    best: Fold = _larger if powers else Vector.maximum
    lowest = vec.int_constant(_LOWEST) if powers else vec.constant(-np.inf)

    def group(start: Any, count: int) -> None:
        """Compute the weights of rows start … start + count - 1."""
        numbers = [builder.add(start, I64(at)) for at in range(count)]
        lines = [vec.offset(x, builder.mul(number, x_row)) for number in numbers]
        goals = [vec.offset(y, builder.mul(number, y_row)) for number in numbers]
        added = [[vec.offset(place, builder.mul(number, row)) for place, row in places] for number in numbers]
        own = [load_word(vec, row_terms, number) for number in numbers]

        def score(at: int, offset: Any, keys_term: Any, mask: Any) -> Any:
            total = builder.add(vec.load_int(vec.offset(lines[at], offset)), builder.add(keys_term, own[at]))
            value = builder.sitofp(total, vec.type)
            for number, (times, least, most, scale) in enumerate(stages):
                if number:
                    place = vec.offset(added[at][number - 1], offset)
                    value = vec.add(value, vec.load(place) if mask is None else vec.load_masked(place, mask))
                if tile.rounded:
                    value = vec.minimum(most, vec.maximum(least, vec.mul(value, times)))
                    if powers and number + 1 == len(stages):
                        return vec.nearest_int(value)
                    value = vec.mul(vec.round(value), scale)
                elif not number:
                    value = vec.mul(value, times)
            return value

        def largest(index: Any, values: list[Any], mask: Any = None) -> list[Any]:
            offset = builder.mul(index, I64(vec.size))
            keys_term, values = vec.load_int(vec.offset(key_terms, offset)), list(values)
            for at in range(count):
                value = score(at, offset, keys_term, mask)
                value = value if mask is None else builder.select(mask, value, lowest)
                vec.store(builder.bitcast(value, vec.type), vec.offset(lines[at], offset))
                values[at] = best(vec, values[at], value)
            return values

        def power(at: int, place: Any) -> Any:
            if not powers:
                return exp_below(vec, vec.sub(vec.load(place), top[at]))
            less = builder.sub(top[at], vec.load_int(place))
            parts = builder.lshr(less, vec.int_constant(TABLE.bit_length() - 1)), less
            return vec.mul(*(vec.permuted(table, part) for table, part in zip(tables, parts, strict=True)))

        def exponentials(index: Any, values: list[Any], mask: Any = None) -> list[Any]:
            values = list(values)
            for at in range(count):
                place = vec.offset(lines[at], builder.mul(index, I64(vec.size)))
                weight = power(at, place)
                weight = weight if mask is None else builder.select(mask, weight, vec.constant(0.0))
                vec.store(weight, place)
                values[at] = vec.add(values[at], weight)
            return values

        def quantise(index: Any, values: list[Any], mask: Any = None) -> list[Any]:
            values = list(values)
            for at in range(count):
                value = vec.load(vec.offset(lines[at], builder.mul(index, I64(vec.size))))
                value = vec.minimum(high, vec.mul(value, times[at]))
                number = builder.add(vec.nearest_int(value), zero)
                number = number if mask is None else builder.select(mask, number, nothing)
                goal = vec.offset(goals[at], builder.mul(index, I64(vec.lanes * tile.y.bytes)))
                store_int(vec, tile.y, number, goal, fits=True)
                values[at] = builder.add(values[at], number)
            return values

        def each(combine: Fold, values: list[Any]) -> list[Any]:
            apart, folded = vec.lanes // count, fold_lanes(vec, combine, values)
            return [vec.shuffle(folded, folded, [at * apart] * vec.lanes) for at in range(count)]

        top = each(best, along(vec, keys, [lowest] * count, largest))
        sums = each(Vector.add, along(vec, keys, [vec.constant(0.0)] * count, exponentials))
        times = [vec.mul(vec.div(vec.constant(1.0), value), inverse) for value in sums]
        store_terms(vec, terms, numbers, along(vec, keys, [nothing] * count, quantise), factor, constant)

    by_groups(vec, rows, tile.group, group)


call_weigh_rows = weigh_rows.caller()


def load_word(vec: Vector, terms: Any, number: Any) -> Any:
    """The int32 of a row in all lanes."""
    place = vec.offset(terms, vec.builder.mul(number, I64(S32.bytes)))
    return vec.splat(vec.builder.load(vec.builder.bitcast(place, I32.as_pointer())))


@dataclass(frozen=True)
class OutputTile:
    """Tile of `store_rows`: the vector width, and the type of the outputs: int8, uint8 or float32."""

    lanes: int
    y: Element


@MicroKernel
def store_rows(
    tile: OutputTile,
    builder: ir.IRBuilder,
    x: Any,
    x_row: Any,
    rows: Any,
    columns: Any,
    row_terms: Any,
    column_terms: Any,
    numbers: Any,
    y: Any,
    y_row: Any,
) -> None:
    """y = factor·(x + the terms of its row and column) for `rows` rows of `columns` int32, rounded for integers.

    `numbers`, float32: the factor, lowest and highest less the zero point, and the zero point.
    """
    vec = Vector(builder, tile.lanes)
    factor, low, high, zero = (vec.broadcast(vec.offset(vec.pointer(numbers), F32.bytes * at)) for at in range(4))
    zero = builder.fptosi(zero, vec.int_type)

    def one(number: Any) -> None:
        source = vec.offset(vec.pointer(x), builder.mul(number, x_row))
        target = vec.offset(vec.pointer(y), builder.mul(number, y_row))
        own = load_word(vec, vec.pointer(row_terms), number)

        def store(index: Any, values: list[Any], mask: Any = None) -> list[Any]:
            offset = builder.mul(index, I64(vec.size))
            term = builder.add(own, vec.load_int(vec.offset(vec.pointer(column_terms), offset)))
            total = builder.add(vec.load_int(vec.offset(source, offset)), term)
            value = vec.mul(builder.sitofp(total, vec.type), factor)
            place = vec.offset(target, builder.mul(index, I64(vec.lanes * tile.y.bytes)))
            if tile.y == F32:
                store_float(vec, tile.y, value, place, mask)
            else:
                value = vec.nearest_int(vec.minimum(high, vec.maximum(low, value)))
                store_int(vec, tile.y, builder.add(value, zero), place, mask, fits=True)
            return values

        along(vec, columns, [], store)

    loop(builder, 0, rows, one)


call_store_rows = store_rows.caller()
