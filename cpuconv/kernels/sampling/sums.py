"""Weighted sums of the inputs around points: vectors of channels, by the tables that `taps` makes.

Vectors of points follow each other in the tables, each with a vector per tap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class SumTile:
    """Tile of the sums.

    Attributes
    ----------
    lanes : int
    taps : int
        Inputs per point.
    together : int
        Vectors of channels that are summed simultaneously.
    partial : bool
        Whether the last vector may have fewer channels than lanes; then `together` is 1.
    adds : bool
        Whether sums are added to the output.
    """

    lanes: int
    taps: int
    together: int = 1
    partial: bool = True
    adds: bool = False


def _tables(tile: SumTile, vec: Vector, x: Any, offsets: Any, weights: Any) -> Callable[[Any], list[tuple[Any, Any]]]:
    """Address of the input and address of the weight of each tap of a point."""
    builder = vec.builder
    offsets, weights = (builder.inttoptr(at, kind.as_pointer()) for at, kind in ((offsets, I32), (weights, F32)))

    def of(point: Any) -> list[tuple[Any, Any]]:
        lane = builder.and_(point, I64(vec.lanes - 1))
        first = builder.add(builder.mul(builder.sub(point, lane), I64(tile.taps)), lane)
        places = [builder.add(first, I64(tap * vec.lanes)) for tap in range(tile.taps)]
        return [
            (
                builder.add(x, builder.sext(builder.load(builder.gep(offsets, [place])), I64)),
                builder.gep(weights, [place]),
            )
            for place in places
        ]

    return of


@MicroKernel
def sum_taps(
    tile: SumTile,
    builder: ir.IRBuilder,
    x: Any,
    x_vector: Any,
    offsets: Any,
    weights: Any,
    points: Any,
    vectors: Any,
    valid: Any,
    y: Any,
    y_point: Any,
    y_vector: Any,
) -> None:
    """y[point] = weighted sum of the channels of its taps: `vectors` vectors, of which the last has `valid` lanes.

    Vectors of channels are `x_vector` bytes apart in the input, `y_vector` in the output.
    """
    vec = Vector(builder, tile.lanes)
    mask, last = first_lanes(vec, valid), builder.sub(vectors, I64(1))
    taps = _tables(tile, vec, x, offsets, weights)

    def point(index: Any) -> None:
        sources, factors = zip(*taps(index), strict=True)
        target = vec.offset(vec.pointer(y), builder.mul(index, y_point))

        def channels(number: Any, part: Any) -> None:
            at = builder.mul(number, x_vector)
            total = vec.constant(0.0)
            for source, factor in zip(sources, factors, strict=True):
                place = vec.offset(vec.pointer(source), at)
                value = vec.load(place) if part is None else vec.load_masked(place, part)
                total = vec.fma(value, vec.splat(builder.load(factor)), total)
            to = vec.offset(target, builder.mul(number, y_vector))
            if part is None:
                vec.store(total, to)
            else:
                vec.store_masked(total, to, part)

        def whole(number: Any, values: list[Any]) -> list[Any]:
            channels(number, None)
            return values

        repeat(vec, I64(0), last if tile.partial else vectors, [], whole)
        if tile.partial:
            channels(last, mask)

    loop(builder, 0, points, point)


@MicroKernel
def sum_samples(
    tile: SumTile,
    builder: ir.IRBuilder,
    x: Any,
    offsets: Any,
    weights: Any,
    factors: Any,
    factor_row: Any,
    samples: Any,
    outputs: Any,
    vectors: Any,
    valid: Any,
    y: Any,
    y_row: Any,
) -> None:
    """y[i] = sum over `samples` points of factors[i, point] times the weighted sum of the point's taps.

    Channels are contiguous. With `together` > 1, `vectors` is a multiple of it.
    """
    vec = Vector(builder, tile.lanes)
    mask = first_lanes(vec, valid) if tile.partial else None
    taps = _tables(tile, vec, x, offsets, weights)
    number = range(tile.together)

    def output(index: Any) -> None:
        target = vec.offset(vec.pointer(y), builder.mul(index, y_row))
        factor = vec.offset(vec.pointer(factors), builder.mul(index, factor_row))
        first = builder.mul(index, samples)

        def channels(at: Any, part: Any) -> None:
            def load(address: Any, at: Any) -> Any:
                place = vec.offset(address, at)
                return vec.load(place) if part is None else vec.load_masked(place, part)

            def sample(step: Any, sums: list[Any]) -> list[Any]:
                scale = vec.broadcast(vec.offset(factor, builder.mul(step, I64(4))))
                means = [vec.constant(0.0)] * tile.together
                for source, weight in taps(builder.add(first, step)):
                    scalar, start = vec.splat(builder.load(weight)), vec.offset(vec.pointer(source), at)
                    means = [vec.fma(load(start, j * vec.size), scalar, means[j]) for j in number]
                return [vec.fma(mean, scale, total) for mean, total in zip(means, sums, strict=True)]

            to = vec.offset(target, at)
            begin = [load(to, j * vec.size) if tile.adds else vec.constant(0.0) for j in number]
            for j, total in enumerate(repeat(vec, I64(0), samples, begin, sample)):
                place = vec.offset(to, j * vec.size)
                if part is None:
                    vec.store(total, place)
                else:
                    vec.store_masked(total, place, part)

        def whole(group: Any, values: list[Any]) -> list[Any]:
            channels(builder.mul(group, I64(tile.together * vec.size)), None)
            return values

        if tile.partial:
            last = builder.sub(vectors, I64(1))
            repeat(vec, I64(0), last, [], whole)
            channels(builder.mul(last, I64(vec.size)), mask)
        else:
            repeat(vec, I64(0), builder.sdiv(vectors, I64(tile.together)), [], whole)

    loop(builder, 0, outputs, output)
