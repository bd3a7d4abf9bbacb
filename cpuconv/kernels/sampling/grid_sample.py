"""GridSample of images with contiguous channels: a weighted sum of vectors of channels per point.

Coordinates of a vector of points become offsets and weights of inputs (`taps`). The sums of these points are then
transposed to the planes of the output, or stored as they are to an output with contiguous channels. Few channels are
gathered instead: lanes are points.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import F32 as FLOAT
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.intrinsics import copy_float
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import first_lanes, transpose_part
from cpuconv.kernels.sampling.taps import TAPS, TapsTile, find_taps
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_FEW = 4  # channels up to which single elements are gathered
MAX_IMAGE = 1 << 31  # bytes of an image: offsets are int32
_POINT_CYCLES = {1: 4.0, 4: 8.0, 16: 24.0}  # cycles per point and vector of channels, by taps
_TAP_CYCLES = 12.0  # cycles per vector of points and tap


@dataclass(frozen=True)
class SumTile:
    """Tile of the sums: inputs per point."""

    lanes: int
    taps: int


@MicroKernel
def sum_taps(
    tile: SumTile,
    builder: ir.IRBuilder,
    x: Any,
    offsets: Any,
    weights: Any,
    points: Any,
    vectors: Any,
    valid: Any,
    y: Any,
    y_row: Any,
) -> None:
    """y[point] = weighted sum of the channels of its taps: `vectors` vectors, of which the last has `valid` lanes."""
    vec = Vector(builder, tile.lanes)
    mask, last = first_lanes(vec, valid), builder.sub(vectors, I64(1))
    offsets, weights = (
        builder.inttoptr(place, kind.as_pointer()) for place, kind in ((offsets, I32), (weights, FLOAT))
    )

    def point(index: Any) -> None:
        places = [builder.add(index, I64(tap * vec.lanes)) for tap in range(tile.taps)]
        sources = [builder.add(x, builder.sext(builder.load(builder.gep(offsets, [place])), I64)) for place in places]
        factors = [builder.gep(weights, [place]) for place in places]
        target = vec.offset(vec.pointer(y), builder.mul(index, y_row))

        def channels(number: Any, part: Any) -> None:
            at = builder.mul(number, I64(vec.size))
            total = vec.constant(0.0)
            for source, factor in zip(sources, factors, strict=True):
                place = vec.offset(vec.pointer(source), at)
                value = vec.load(place) if part is None else vec.load_masked(place, part)
                total = vec.fma(value, vec.splat(builder.load(factor)), total)
            if part is None:
                vec.store(total, vec.offset(target, at))
            else:
                vec.store_masked(total, vec.offset(target, at), part)

        def whole(number: Any, values: list[Any]) -> list[Any]:
            channels(number, None)
            return values

        repeat(vec, I64(0), last, [], whole)
        channels(last, mask)

    loop(builder, 0, points, point)


@MicroKernel
def gather_taps(
    tile: SumTile,
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
        for tap in range(tile.taps):
            places = [builder.gep(offsets, [I64(tap * vec.lanes + lane)]) for lane in range(vec.lanes)]
            sources = [vec.pointer(builder.add(plane, builder.sext(builder.load(place), I64))) for place in places]
            weight = vec.load(vec.offset(vec.pointer(weights), tap * vec.size))
            total = vec.fma(vec.gather(sources), weight, total)
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
        offsets=offsets,
        weights=weights,
        points=count,
        vectors=args.vectors,
        valid=args.valid,
        y=sums if tile.planes else y,
        y_row=args.sums_row if tile.planes else args.y_point,
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


def grid_sample_steps(
    processor: Processor, space: Space, tile: TapsTile, x: TensorView, grid: TensorView, y: TensorView
) -> list[Step]:
    """Kernel calls for images (N, C, H, W) of any strides, a dense grid (N, h, w, 2) and a dense output."""
    lanes, steps = processor.isa.lanes, list[Step]()
    n, c, height, width = x.shape
    points = y.shape[2] * y.shape[3]
    few = c <= _FEW and y.strides[3] == F32.bytes
    span = height * abs(x.strides[2]) + width * abs(x.strides[3])
    if (x.strides[1] != F32.bytes and not few) or span >= MAX_IMAGE:
        pitch = (c if c < lanes else divide(c, lanes) * lanes) * F32.bytes
        strides = (height * width * pitch, F32.bytes, width * pitch, pitch)
        copied = TensorView(space.reserve(n * strides[0]), x.shape, strides)
        steps, x = move_tensor(processor, space, x, copied), copied
    vectors = divide(c, lanes)
    taps, vector = tile.count, lanes * F32.bytes
    args: Args = {
        "find_taps": MicroRef(find_taps, tile),
        "sum_taps": MicroRef(gather_taps if few else sum_taps, SumTile(lanes, taps)),
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
