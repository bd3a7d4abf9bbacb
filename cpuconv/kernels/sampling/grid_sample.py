"""GridSample of images with contiguous channels: a weighted sum of vectors of channels per point.

Coordinates of a vector of points become offsets and weights of inputs (`taps`). The sums of these points are then
transposed to the planes of the output, or stored as they are to an output with contiguous channels. Few channels are
gathered instead: lanes are points.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.intrinsics import copy_float
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import first_lanes, four_columns, join, transpose_part
from cpuconv.kernels.sampling.images import channels_last
from cpuconv.kernels.sampling.sums import SumTile, sum_taps
from cpuconv.kernels.sampling.taps import TAPS, TapsTile, find_taps
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import applied

_FEW = 4  # channels up to which single elements are gathered
_POINT_CYCLES = {1: 4.0, 4: 8.0, 16: 24.0}  # cycles per point and vector of channels, by taps
_TAP_CYCLES = 12.0  # cycles per vector of points and tap


@dataclass(frozen=True)
class GatherTile:
    """Tile of the gathers: `rows` loads per point, each of `run` adjacent inputs: 1, 2 or 4."""

    lanes: int
    rows: int
    run: int = 1


def _gathered(vec: Vector, run: int, sources: list[Any]) -> list[Any]:
    """Load runs at `sources`: a vector for each place in a run."""
    if run == 1:
        return [vec.gather(sources)]
    if run == 4:
        return four_columns(vec, sources.__getitem__)
    pair, half = Vector(vec.builder, 2), vec.lanes // 2
    pairs = [join(vec, [pair.load(source) for source in part]) for part in (sources[:half], sources[half:])]
    return [vec.shuffle(pairs[0], pairs[1], range(place, 2 * vec.lanes, 2)) for place in range(2)]


@MicroKernel
def gather_taps(
    tile: GatherTile,
    builder: ir.IRBuilder,
    x: Any,
    x_channel: Any,
    offsets: Any,
    weights: Any,
    points: Any,
    channels: Any,
    y: Any,
    y_channel: Any,
) -> None:
    """y[channel][point] = weighted sum of the taps of each of `points` <= `lanes` points, gathered one by one."""
    vec = Vector(builder, tile.lanes)
    mask = first_lanes(vec, points)
    offsets = builder.inttoptr(offsets, I32.as_pointer())

    def channel(index: Any) -> None:
        plane = builder.add(x, builder.mul(index, x_channel))
        total = vec.constant(0.0)
        for row in range(tile.rows):
            places = [builder.gep(offsets, [I64(row * vec.lanes + lane)]) for lane in range(vec.lanes)]
            sources = [vec.pointer(builder.add(plane, builder.sext(builder.load(place), I64))) for place in places]
            for number, value in enumerate(_gathered(vec, tile.run, sources), row * tile.run):
                weight = vec.load(vec.offset(vec.pointer(weights), number * vec.size))
                total = vec.fma(value, weight, total)
        vec.store_masked(total, vec.offset(vec.pointer(y), builder.mul(index, y_channel)), mask)

    loop(builder, 0, channels, channel)


_call_taps, _call_sums, _call_gather = find_taps.caller(), sum_taps.caller(), gather_taps.caller()


@dataclass(frozen=True)
class GridSampleTile:
    """Tile of the driver; `planes`: the output has contiguous points, not channels; `few`: channels are gathered."""

    lanes: int
    planes: bool
    few: bool = False


def _sum(tile, args, x, offsets, weights, count, sums, y):
    _call_sums(
        args.sum_taps,
        x=x,
        x_vector=4 * tile.lanes,
        offsets=offsets,
        weights=weights,
        points=count,
        vectors=args.vectors,
        valid=args.valid,
        y=sums if tile.planes else y,
        y_point=args.sums_row if tile.planes else args.y_point,
        y_vector=4 * tile.lanes,
    )
    if tile.planes:
        if count == tile.lanes:
            for channel in range(0, args.channels, tile.lanes):
                present = min(tile.lanes, args.channels - channel)
                target = y + channel * args.y_channel
                transpose_part(tile, sums + 4 * channel, args.sums_row, count, target, args.y_channel, present)
        else:
            for channel in range(args.channels):
                for point in range(count):
                    source = sums + point * args.sums_row + 4 * channel
                    copy_float(tile, source, y + channel * args.y_channel + point * args.y_point)


def _gather(tile, args, x, offsets, weights, count, sums, y):
    _call_gather(
        args.sum_taps,
        x=x,
        x_channel=args.x_channel,
        offsets=offsets,
        weights=weights,
        points=count,
        channels=args.channels,
        y=y,
        y_channel=args.y_channel,
    )


@specialise_on_tile(lambda tile: _gather if tile.few else _sum)
def _points(tile, args, x, offsets, weights, count, sums, y):
    """Compute all channels of `count` points."""


@kernel(
    "find_taps sum_taps x grid y images points blocks channels vectors valid height width x_image x_row x_column "
    "x_channel grid_image y_image y_channel y_point sums_row space space_step weights_at sums_at"
)
def grid_sample(tile, worker, before, part, parts, args):
    """Units are (image, vector of points); the last vector of an image overlaps the one before."""
    offsets = args.space + worker * args.space_step
    weights = offsets + args.weights_at
    sums = offsets + args.sums_at
    count = min(tile.lanes, args.points)
    units = args.images * args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        image = unit // args.blocks
        first = min((unit - image * args.blocks) * tile.lanes, args.points - count)
        y = args.y + image * args.y_image + first * args.y_point
        _call_taps(
            args.find_taps,
            grid=args.grid + image * args.grid_image + 8 * first,
            points=count,
            height=args.height,
            width=args.width,
            row=args.x_row,
            column=args.x_column,
            offsets=offsets,
            weights=weights,
        )
        _points(tile, args, args.x + image * args.x_image, offsets, weights, count, sums, y)


def seconds(processor: Processor, mode: str, shape: tuple[int, ...], points: int, copied: bool) -> float:
    """Modelled time for images of `shape` (N, C, H, W), in seconds; `copied`: channels are made contiguous first."""
    n, c, h, w = shape
    lanes, taps = processor.isa.lanes, TAPS[mode] ** 2
    cycles = n * points * divide(c, lanes) * _POINT_CYCLES[taps] + n * divide(points, lanes) * taps * _TAP_CYCLES
    moved = F32.bytes * n * (c * h * w * (3 if copied else 1) + points * (c + 2))
    return processor.moving(moved) + processor.computing(cycles * lanes)


def _sums(tile: TapsTile) -> Args:
    """Micro-kernels for contiguous channels."""
    return {"find_taps": MicroRef(find_taps, tile), "sum_taps": MicroRef(sum_taps, SumTile(tile.lanes, tile.count))}


def _gathers(tile: TapsTile, x: TensorView) -> Args:
    """Micro-kernels for few channels; adjacent inputs are loaded simultaneously, if rows are that long."""
    run, width = TAPS[tile.mode], x.shape[3]
    single = MicroRef(find_taps, tile), MicroRef(gather_taps, GatherTile(tile.lanes, tile.count))
    if run == 1 or x.strides[3] != F32.bytes:
        return dict(zip(("find_taps", "sum_taps"), single, strict=True))
    runs = MicroRef(find_taps, replace(tile, runs=True)), MicroRef(gather_taps, GatherTile(tile.lanes, run, run))
    is_long = applied(functools.partial(_is_long, run), width)
    pairs = zip(("find_taps", "sum_taps"), single, runs, strict=True)
    return {name: OneOf((short, long), is_long, ready=2) for name, short, long in pairs}


def _is_long(run: int, width: int) -> int:
    return int(width >= run)


def grid_sample_steps(
    processor: Processor, space: Space, tile: TapsTile, x: TensorView, grid: TensorView, y: TensorView
) -> list[Step]:
    """Kernel calls for images (N, C, H, W) of any strides, a dense grid (N, h, w, 2) and a dense output."""
    lanes = processor.isa.lanes
    n, c, height, width = x.shape
    points = y.shape[2] * y.shape[3]
    few = c <= _FEW and y.strides[3] == F32.bytes
    steps, x = channels_last(processor, space, x, few)
    vectors = divide(c, lanes)
    taps, vector = tile.count, lanes * F32.bytes
    args: Args = {
        **(_gathers(tile, x) if few else _sums(tile)),
        "x": x.ref,
        "grid": grid.ref,
        "y": y.ref,
        "images": n,
        "points": points,
        "blocks": divide(points, lanes),
        "channels": c,
        "vectors": vectors,
        "valid": c - (vectors - 1) * lanes,
        "height": height,
        "width": width,
        "x_image": x.strides[0],
        "x_channel": x.strides[1],
        "x_row": x.strides[2],
        "x_column": x.strides[3],
        "grid_image": grid.strides[0],
        "y_image": y.strides[0],
        "y_channel": y.strides[1],
        "y_point": y.strides[3],
        "sums_row": vectors * vector,
        **worker_args("space", space, 2 * taps * vector + lanes * vectors * vector, processor.threads),
        "weights_at": taps * vector,
        "sums_at": 2 * taps * vector,
    }
    parts = processor.parts(x.size + y.size)
    return [*steps, Step(grid_sample, GridSampleTile(lanes, y.strides[3] == F32.bytes, few), args, parts)]
