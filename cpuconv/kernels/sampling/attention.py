"""Multi-scale deformable attention: weighted sums of bilinear samples of the values, accumulated level by level.

Source: Zhu et al., "Deformable DETR" (2021). A vector of points of a few queries becomes offsets and weights of inputs
(`taps`). The samples of a query are then summed, each with its attention weight, without being stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import Vector
from cpuconv.kernels.binding.arguments import stride_args, worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView, contiguous_strides
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.sampling.images import channels_last, sum_tile
from cpuconv.kernels.sampling.sums import sum_samples
from cpuconv.kernels.sampling.taps import TapsTile, find_taps
from cpuconv.problem.integers import divide
from cpuconv.runtime.kernel import inline, kernel

_TAP_CYCLES, _POINT_CYCLES = 12.0, 8.0  # per vector of points and tap; per point and vector of channels


@dataclass(frozen=True)
class AttentionTile:
    """Tile of the driver; `packed`: coordinates of several queries are not contiguous, and are copied first."""

    lanes: int
    packed: bool


_call_taps, _call_sums = find_taps.caller(), sum_samples.caller()


@emitter
def _copy_first(tile: Any, vec: Vector, source: Any, target: Any, count: Any) -> None:
    """Copy the first `count` float32, at most `lanes`."""
    mask = first_lanes(vec, count)
    vec.store_masked(vec.load_masked(vec.pointer(source), mask), vec.pointer(target), mask)


@inline
def _pack(tile, args, grid, count, target):
    """Copy the coordinates of `count` queries next to each other."""
    numbers = 2 * args.samples
    for query in range(count):
        for first in range(0, numbers, tile.lanes):
            source = grid + query * args.grid_query + 4 * first
            _copy_first(tile, source, target + 4 * (query * numbers + first), min(tile.lanes, numbers - first))


@kernel(
    "find_taps sum_samples x grid factors y items heads queries block blocks samples taps vectors valid height width "
    "x_item x_row x_column grid_item grid_query factor_item factor_query y_image y_head y_query space space_step "
    "weights_at grid_at"
)
def attend_level(tile, worker, before, part, parts, args):
    """Units are (item, block of queries); an item is a head of an image."""
    offsets = args.space + worker * args.space_step
    weights = offsets + args.weights_at
    packed = offsets + args.grid_at
    units = args.items * args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        item = unit // args.blocks
        first = (unit - item * args.blocks) * args.block
        count = min(args.block, args.queries - first)
        grid = args.grid + item * args.grid_item + first * args.grid_query
        if tile.packed:
            _pack(tile, args, grid, count, packed)
            grid = packed
        points = count * args.samples
        for point in range(0, points, tile.lanes):
            _call_taps(
                args.find_taps,
                grid=grid + 8 * point,
                points=min(tile.lanes, points - point),
                depth=1,
                height=args.height,
                width=args.width,
                plane=0,
                row=args.x_row,
                column=args.x_column,
                offsets=offsets + 4 * args.taps * point,
                weights=weights + 4 * args.taps * point,
            )
        image = item // args.heads
        y = args.y + image * args.y_image + (item - image * args.heads) * args.y_head
        _call_sums(
            args.sum_samples,
            x=args.x + item * args.x_item,
            offsets=offsets,
            weights=weights,
            factors=args.factors + item * args.factor_item + first * args.factor_query,
            factor_row=args.factor_query,
            samples=args.samples,
            outputs=count,
            vectors=args.vectors,
            valid=args.valid,
            y=y + first * args.y_query,
            y_row=args.y_query,
        )


def seconds(processor: Processor, items: int, queries: int, samples: int, channels: int) -> float:
    """Modelled time of all levels, with `samples` per query, in seconds."""
    lanes, points = processor.isa.lanes, items * queries * samples
    return processor.computing(4 * points * _TAP_CYCLES + lanes * points * divide(channels, lanes) * _POINT_CYCLES)


def _level_steps(
    processor: Processor,
    space: Space,
    tile: TapsTile,
    x: TensorView,
    grid: TensorView,
    factors: TensorView,
    y: TensorView,
    heads: int,
    adds: bool,
) -> list[Step]:
    """Kernel calls of one level: y (M / heads, Q, heads·C), dense, (+)= sum over P of the samples times their factors.

    Values x (M, C, H, W) may have any strides; in the grid (M, Q, P, 2) the last two axes are contiguous, in the
    factors (M, Q, P) the last one. M counts the heads of all images.
    """
    steps, x = channels_last(processor, space, x)
    lanes = processor.isa.lanes
    items, channels, height, width = x.shape
    queries, samples = grid.shape[1:3]
    block = max(1, 4 * lanes // samples)
    vectors = divide(channels, lanes)
    table = divide(block * samples, lanes) * lanes * tile.count * F32.bytes
    packed = grid.strides[1] != 2 * samples * F32.bytes
    args: Args = {
        "find_taps": MicroRef(find_taps, tile),
        "sum_samples": MicroRef(sum_samples, sum_tile(lanes, tile.count, channels, adds)),
        "x": x.ref,
        "grid": grid.ref,
        "factors": factors.ref,
        "y": y.ref,
        "items": items,
        "heads": heads,
        "queries": queries,
        "block": block,
        "blocks": divide(queries, block),
        "samples": samples,
        "taps": tile.count,
        "vectors": vectors,
        "valid": channels - (vectors - 1) * lanes,
        "height": height,
        "width": width,
        **stride_args("x", x.strides, "item - row column"),
        **stride_args("grid", grid.strides, "item query"),
        **stride_args("factor", factors.strides, "item query"),
        "y_image": y.strides[0],
        "y_head": channels * F32.bytes,
        "y_query": y.strides[1],
        **worker_args("space", space, 2 * table + 2 * block * samples * F32.bytes, processor.threads),
        "weights_at": table,
        "grid_at": 2 * table,
    }
    parts = processor.parts(items * queries * samples * tile.count * channels * F32.bytes)
    return [*steps, Step(attend_level, AttentionTile(lanes, packed), args, parts)]


def attention_steps(
    processor: Processor, space: Space, tile: TapsTile, heads: int, operands: Sequence[TensorView], y: TensorView
) -> list[Step]:
    """Kernel calls for weights (M, 1, Q, all points), then values and grid of each level, of any strides."""
    steps = list[Step]()

    def contiguous(place: TensorView, axes: int) -> TensorView:
        """Copy a tensor whose last `axes` axes are not contiguous."""
        dense = contiguous_strides(place.shape, F32.bytes)
        if place.strides[-axes:] == dense[-axes:]:
            return place
        copied = TensorView.plain(space.reserve(place.size), place.shape)
        steps.extend(move_tensor(processor, space, place, copied))
        return copied

    first, factors = 0, contiguous(operands[0], 1)
    item, _, query, sample = factors.strides
    for level, (x, grid) in enumerate(zip(operands[1::2], operands[2::2], strict=True)):
        grid = contiguous(grid, 2)
        part = factors.at(first * sample, grid.shape[:3], (item, query, sample))
        steps += _level_steps(processor, space, tile, x, grid, part, y, heads, adds=level > 0)
        first += grid.shape[2]
    return steps
