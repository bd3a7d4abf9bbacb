"""GridSample of images with few channels: lanes are points, whose inputs are gathered one by one, or in short runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.steps import MicroRef, OneOf
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import NARROW, first_lanes, join, transpose_quads
from cpuconv.kernels.sampling.taps import TAPS, Plane, TapsTile, store_tables
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import applied, is_symbolic

BATCH = 16  # vectors of points whose tables are stored before the inputs of the first one are loaded


@dataclass(frozen=True)
class GatherTile(TapsTile):
    """Tile of the gathers; `channels`: their number; 0: any number, one after another."""

    channels: int = 0

    @property
    def table_bytes(self) -> tuple[int, int]:
        """Bytes of the offsets and the weights of a vector of points."""
        vector = self.lanes * F32.bytes
        return self.count // self.run * vector, self.count * vector


def _load(vec: Vector, run: int, address: Any) -> Any:
    """A run of inputs."""
    return Vector(vec.builder, run).load(Vector(vec.builder, run).pointer(address))


def _offsets(vec: Vector, pairs: Any) -> Iterator[Any]:
    """Yield offsets, as int64; pairs of them are loaded, as the load queue binds while inputs are not in L1."""
    builder = vec.builder
    for number in range(vec.lanes // 2):
        pair = builder.load(builder.gep(pairs, [I64(number)]))
        yield builder.ashr(builder.shl(pair, I64(32)), I64(32))
        yield builder.ashr(pair, I64(32))


def _columns(vec: Vector, run: int, runs: Sequence[Any]) -> list[Any]:
    """A vector for each place in a run, of as many runs as there are lanes."""
    if run == 1:
        return [vec.joined(runs)]
    if run == NARROW:
        return transpose_quads(vec, [join(vec, runs[first::NARROW]) for first in range(NARROW)])
    half = vec.lanes // 2
    pairs = [join(vec, part) for part in (runs[:half], runs[half:])]
    return [vec.shuffle(pairs[0], pairs[1], range(place, 2 * vec.lanes, 2)) for place in range(2)]


@MicroKernel
def sample_points(
    tile: GatherTile,
    builder: ir.IRBuilder,
    x: Any,
    x_channel: Any,
    grid: Any,
    points: Any,
    depth: Any,
    height: Any,
    width: Any,
    plane: Any,
    row: Any,
    column: Any,
    offsets: Any,
    weights: Any,
    channels: Any,
    y: Any,
    y_channel: Any,
) -> None:
    """y[channel][point] = weighted sum of the taps of each of `points` points; `offsets` and `weights` are scratch.

    Vectors of points follow each other; the last one overlaps the one before. A batch of them is found before any of
    its inputs is loaded: else each vector waits for the one before, as its offsets cannot be forwarded from a store
    that waits behind loads of inputs.
    """
    vec = Vector(builder, tile.lanes)
    image = Plane((width, height, depth)[: tile.axes], (column, row, plane)[: tile.axes])
    count = builder.select(builder.icmp_signed("<", points, I64(vec.lanes)), points, I64(vec.lanes))
    mask, last = first_lanes(vec, count), builder.sub(points, count)

    def tables(number: Any) -> list[Any]:
        """Addresses of the offsets and the weights of a vector of points of a batch."""
        starts = zip((offsets, weights), tile.table_bytes, strict=True)
        return [builder.add(start, builder.mul(number, I64(size))) for start, size in starts]

    def first_point(index: Any) -> Any:
        first = builder.mul(index, I64(vec.lanes))
        return builder.select(builder.icmp_signed("<", first, last), first, last)

    def batch(index: Any) -> None:
        before = builder.mul(index, I64(BATCH))
        left = builder.sub(blocks, before)
        present = builder.select(builder.icmp_signed("<", left, I64(BATCH)), left, I64(BATCH))

        def find(number: Any) -> None:
            first = builder.mul(first_point(builder.add(before, number)), I64(F32.bytes * tile.axes))
            store_tables(tile, builder, builder.add(grid, first), count, image, *tables(number))

        def sample(number: Any) -> None:
            first = builder.mul(first_point(builder.add(before, number)), I64(F32.bytes))
            target, (places, factors) = builder.add(y, first), tables(number)
            sums = functools.partial(_sums, tile, vec, builder.inttoptr(places, I64.as_pointer()), factors)
            if tile.channels:
                planes = [builder.add(x, builder.mul(I64(at), x_channel)) for at in range(tile.channels)]
                for at, total in enumerate(sums(planes)):
                    vec.store_masked(total, vec.offset(vec.pointer(target), builder.mul(I64(at), y_channel)), mask)
            else:
                loop(builder, 0, channels, functools.partial(channel, target, sums))

        loop(builder, 0, present, find)
        loop(builder, 0, present, sample)

    def channel(target: Any, sums: Any, index: Any) -> None:
        (total,) = sums([builder.add(x, builder.mul(index, x_channel))])
        vec.store_masked(total, vec.offset(vec.pointer(target), builder.mul(index, y_channel)), mask)

    blocks = builder.udiv(builder.add(points, I64(vec.lanes - 1)), I64(vec.lanes))
    loop(builder, 0, builder.udiv(builder.add(blocks, I64(BATCH - 1)), I64(BATCH)), batch)


def _sums(tile: GatherTile, vec: Vector, table: Any, weights: Any, planes: list[Any]) -> list[Any]:
    """Weighted sums of the inputs of a vector of points, one per plane."""
    builder = vec.builder
    totals = [vec.constant(0.0) for _ in planes]
    for row in range(tile.count // tile.run):
        far = _offsets(vec, builder.gep(table, [I64(row * vec.lanes // 2)]))
        runs = [[_load(vec, tile.run, builder.add(plane, each)) for plane in planes] for each in far]
        for at, lanes in enumerate(zip(*runs, strict=True)):
            for number, value in enumerate(_columns(vec, tile.run, lanes), row * tile.run):
                weight = vec.load(vec.offset(vec.pointer(weights), number * vec.size))
                totals[at] = vec.fma(value, weight, totals[at])
    return totals


_call = sample_points.caller()


@kernel(
    "sample_points x grid y images points blocks channels depth height width x_image x_plane x_row x_column x_channel "
    "grid_image grid_point y_image y_channel space space_step weights_at"
)
def sample_planes(tile, worker, before, part, parts, args):
    """Units are (image, vector of points); each call of the micro-kernel has units of one image."""
    offsets = args.space + worker * args.space_step
    units = args.images * args.blocks
    begin, end = units * part // parts, units * (part + 1) // parts
    for image in range(begin // args.blocks, (end + args.blocks - 1) // args.blocks):
        start = max(begin - image * args.blocks, 0)
        stop = min(end - image * args.blocks, args.blocks)
        first = start * tile.lanes
        if start < stop:
            _call(
                args.sample_points,
                x=args.x + image * args.x_image,
                x_channel=args.x_channel,
                grid=args.grid + image * args.grid_image + first * args.grid_point,
                points=min(stop * tile.lanes, args.points) - first,
                depth=args.depth,
                height=args.height,
                width=args.width,
                plane=args.x_plane,
                row=args.x_row,
                column=args.x_column,
                offsets=offsets,
                weights=offsets + args.weights_at,
                channels=args.channels,
                y=args.y + image * args.y_image + 4 * first,
                y_channel=args.y_channel,
            )


def gathers(tile: TapsTile, x: TensorView) -> MicroRef | OneOf:
    """The micro-kernel for few channels; adjacent inputs are loaded simultaneously, if rows are that long."""
    run, width = TAPS[tile.mode], x.shape[-1]
    channels = 0 if is_symbolic(x.shape[1]) else x.shape[1]
    fields = (tile.lanes, tile.mode, tile.padding, tile.aligned)
    single = MicroRef(sample_points, GatherTile(*fields, axes=tile.axes, channels=channels))
    if run == 1 or x.strides[-1] != F32.bytes:
        return single
    runs = MicroRef(sample_points, replace(single.tile, runs=True))
    return OneOf((single, runs), applied(functools.partial(_is_long, run), width), ready=2)


def _is_long(run: int, width: int) -> int:
    return int(width >= run)
