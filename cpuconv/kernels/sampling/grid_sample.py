"""GridSample of images with contiguous channels: a weighted sum of vectors of channels per point.

Coordinates of a vector of points become offsets and weights of inputs (`taps`). The sums of these points are then
transposed to the planes of the output, or stored as they are to an output with contiguous channels. Few channels are
gathered instead (`planes`).
"""

from __future__ import annotations

import math

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.kernels.binding.arguments import stride_args, worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.intrinsics import copy_float
from cpuconv.kernels.emit.transpose import transpose_part
from cpuconv.kernels.sampling.images import channels_last
from cpuconv.kernels.sampling.planes import BATCH, gathers, sample_planes
from cpuconv.kernels.sampling.sums import SumTile, sum_taps
from cpuconv.kernels.sampling.taps import TAPS, TapsTile, find_taps
from cpuconv.problem.integers import divide
from cpuconv.runtime.driver_functions import inline
from cpuconv.runtime.kernel import kernel

_FEW = 4  # channels up to which single elements are gathered
_POINT_CYCLES = 1.5  # cycles per point, vector of channels, and tap, with one tap more for the store
_TAP_CYCLES = 12.0  # cycles per vector of points and tap


_call_taps, _call_sums = find_taps.caller(), sum_taps.caller()


@dataclass(frozen=True)
class GridSampleTile:
    """Tile of the driver; `planes`: the output has contiguous points, not channels."""

    lanes: int
    planes: bool


@inline
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


@kernel(
    "find_taps sum_taps x grid y images points blocks channels vectors valid depth height width x_image x_plane x_row "
    "x_column grid_image grid_point y_image y_channel y_point sums_row space space_step weights_at sums_at"
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
            grid=args.grid + image * args.grid_image + first * args.grid_point,
            points=count,
            depth=args.depth,
            height=args.height,
            width=args.width,
            plane=args.x_plane,
            row=args.x_row,
            column=args.x_column,
            offsets=offsets,
            weights=weights,
        )
        _sum(tile, args, args.x + image * args.x_image, offsets, weights, count, sums, y)


def seconds(processor: Processor, mode: str, shape: tuple[int, ...], points: int) -> float:
    """Modelled time for images of `shape` (N, C, sizes...), in seconds, with a copy that makes channels contiguous."""
    (n, c, *sizes), lanes = shape, processor.isa.lanes
    taps, size = TAPS[mode] ** len(sizes), math.prod(sizes)
    cycles = n * points * divide(c, lanes) * _POINT_CYCLES * (taps + 1) + n * divide(points, lanes) * taps * _TAP_CYCLES
    moved = F32.bytes * n * (3 * c * size + points * (c + len(sizes)))
    return processor.moving(moved) + processor.computing(cycles * lanes)


def grid_sample_steps(
    processor: Processor, space: Space, tile: TapsTile, x: TensorView, grid: TensorView, y: TensorView
) -> list[Step]:
    """Kernel calls for images (N, C, sizes...) of any strides, a dense grid (N, sizes..., axes) and a dense output."""
    lanes = processor.isa.lanes
    n, c, points = x.shape[0], x.shape[1], math.prod(y.shape[2:])
    few = c <= _FEW and y.strides[-1] == F32.bytes
    steps, x = channels_last(processor, space, x, few)
    depth, height, width = (1, *x.shape[2:])[-3:]
    plane, row, column = (0, *x.strides[2:])[-3:]
    taps, vector = tile.count, lanes * F32.bytes
    args: Args = {
        "x": x.ref,
        "grid": grid.ref,
        "y": y.ref,
        "images": n,
        "points": points,
        "blocks": divide(points, lanes),
        "channels": c,
        "depth": depth,
        "height": height,
        "width": width,
        "x_image": x.strides[0],
        "x_plane": plane,
        "x_row": row,
        "x_column": column,
        "grid_image": grid.strides[0],
        "grid_point": F32.bytes * tile.axes,
        **stride_args("y", y.strides, "image channel"),
        "weights_at": taps * vector,
    }
    parts = processor.parts(x.size + y.size)
    if few:
        table = BATCH * taps * vector
        args |= {"sample_points": gathers(tile, x), "x_channel": x.strides[1], "weights_at": table}
        args |= worker_args("space", space, 2 * table, processor.threads)
        return [*steps, Step(sample_planes, tile, args, parts)]
    vectors = divide(c, lanes)
    args |= {
        "find_taps": MicroRef(find_taps, tile),
        "sum_taps": MicroRef(sum_taps, SumTile(lanes, taps)),
        "vectors": vectors,
        "valid": c - (vectors - 1) * lanes,
        "y_point": y.strides[-1],
        "sums_row": vectors * vector,
        "sums_at": 2 * taps * vector,
        **worker_args("space", space, 2 * taps * vector + lanes * vectors * vector, processor.threads),
    }
    return [*steps, Step(grid_sample, GridSampleTile(lanes, y.strides[-1] == F32.bytes), args, parts)]
