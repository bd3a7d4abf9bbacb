"""Weights of values from scores, for all rows of a block of queries in one call.

A few rows are reduced together: their maxima and sums are independent chains, and one sequence of shuffles folds the
lanes of all of them. Rows are not divided by their sums; the outputs, of which there are fewer, are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32 as F32_ELEMENT
from cpuconv.elements import Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import store_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.attention.int8_packing import by_groups
from cpuconv.kernels.elementwise.exponential import LN2, exp_below
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import fold_lanes, repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class WeightsTile:
    """Tile of `softmax_rows`.

    Attributes
    ----------
    lanes : int
    group : int
        Rows that are reduced together, a power of two.
    masked : bool
        Whether a mask is added to the scores.
    negated : bool
        Whether the scale is negative: the largest score is that of the smallest product. Not with a mask.
    y : Element
        Type of the weights, float32 or bfloat16.
    """

    lanes: int
    group: int
    masked: bool = False
    negated: bool = False
    y: Element = F32_ELEMENT


def weights_tile(isa: Isa, masked: bool, scale: float, y: Element) -> WeightsTile:
    """The tile for an instruction set, with as many rows per group as its registers hold."""
    return WeightsTile(isa.lanes, 4 if isa.registers >= 32 else 2, masked, scale < 0 and not masked, y)


@MicroKernel
def softmax_rows(
    tile: WeightsTile,
    builder: ir.IRBuilder,
    x: Any,
    row_bytes: Any,
    rows: Any,
    keys: Any,
    mask: Any,
    mask_row: Any,
    scale: Any,
    factors: Any,
) -> None:
    """Replace each row of `keys` products x by exp(s - max), where s = x · scale + mask, padded with zeros to a vector.

    The inverse of a row's sum goes to `factors`. Weights of a row of -inf are 0, with an infinite inverse. `row_bytes`
    and `mask_row` are bytes between rows, which begin with whole vectors of memory; weights of bfloat16 overwrite the
    first half of a row.
    """
    vec = Math(builder, tile.lanes)
    x, mask, factors = (vec.pointer(each) for each in (x, mask, factors))
    times = vec.broadcast(vec.pointer(scale))
    times = times if tile.masked else vec.mul(times, vec.constant(1 / LN2))  # powers of 2
    whole = builder.udiv(builder.sub(keys, I64(1)), I64(vec.lanes))  # the last vector has 1 … lanes keys
    present = first_lanes(vec, builder.sub(keys, builder.mul(whole, I64(vec.lanes))))
    zero, lowest = vec.constant(0.0), vec.constant(float(np.finfo(np.float32).min))
    best, start = (Vector.minimum, np.inf) if tile.negated else (Vector.maximum, -np.inf)

    def group(first: Any, count: int) -> None:
        """Compute the weights of rows first … first + count - 1."""
        numbers = [builder.add(first, I64(at)) for at in range(count)]
        lines = [vec.offset(x, builder.mul(number, row_bytes)) for number in numbers]
        masks = [vec.offset(mask, builder.mul(number, mask_row)) for number in numbers]

        def score(at: int, index: Any, last: bool) -> Any:
            offset = builder.mul(index, I64(vec.size))
            value = vec.load(vec.offset(lines[at], offset))
            if not tile.masked:
                return value
            place = vec.offset(masks[at], offset)
            return vec.fma(value, times, vec.load_masked(place, present) if last else vec.load(place))

        def largest(index: Any, values: list[Any], last: bool = False) -> list[Any]:
            scores = [score(at, index, last) for at in range(count)]
            if last:
                scores = [builder.select(present, each, vec.constant(start)) for each in scores]
            return [best(vec, value, each) for value, each in zip(values, scores, strict=True)]

        top = fold_lanes(
            vec, best, largest(whole, repeat(vec, I64(0), whole, [vec.constant(start)] * count, largest), True)
        )
        top = vec.maximum(lowest, top if tile.masked else vec.mul(top, times))
        apart = vec.lanes // count
        less = [vec.negative(vec.shuffle(top, top, [at * apart] * vec.lanes)) for at in range(count)]

        def exponentials(index: Any, values: list[Any], last: bool = False) -> list[Any]:
            for at in range(count):
                value = score(at, index, last)
                if tile.masked:
                    weight = exp_below(vec, vec.add(value, less[at]))
                else:
                    weight = exp_below(vec, vec.fma(value, times, less[at]), LN2)
                if last:
                    weight = builder.select(present, weight, zero)
                place = vec.offset(lines[at], builder.mul(index, I64(vec.lanes * tile.y.bytes)))
                store_float(vec, tile.y, weight, place)
                values[at] = vec.add(values[at], weight)
            return values

        total = fold_lanes(
            vec, Vector.add, exponentials(whole, repeat(vec, I64(0), whole, [zero] * count, exponentials), True)
        )
        inverse = vec.div(vec.constant(1.0), total)
        target = vec.offset(factors, builder.mul(first, I64(F32_ELEMENT.bytes)))
        vec.scatter(
            vec.shuffle(inverse, inverse, [at % count * apart for at in range(vec.lanes)]),
            [vec.offset(target, F32_ELEMENT.bytes * at) for at in range(count)],
        )

    by_groups(vec, rows, tile.group, group)


call_softmax_rows = softmax_rows.caller()
