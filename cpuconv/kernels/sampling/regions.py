"""RoiAlign: bilinear samples of regions, averaged or maximised per bin, for vectors of channels.

Source: He et al., "Mask R-CNN" (2017), and the ONNX operator. A micro-kernel computes a region: for each bin and a few
vectors of channels, the samples are folded in registers. Channels are contiguous, as such or in blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import F32 as FLOAT
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.emit.intrinsics import copy_float, word
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import first_lanes, transpose_part
from cpuconv.kernels.sampling.definition import MAX_SAMPLES, Attributes
from cpuconv.kernels.sampling.images import channels_last
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_TOGETHER = 4  # vectors of channels that are folded simultaneously
_CYCLES = 9.0  # per sample and vector of channels


@dataclass(frozen=True)
class RegionTile:
    """Tile of a region.

    Attributes
    ----------
    lanes : int
    fold : str
        "sum" or "max".
    half : bool
        Coordinates are shifted by half an input; otherwise regions are at least one input wide.
    partial : bool
        Whether the last vector may have fewer channels than lanes.
    """

    lanes: int
    fold: str
    half: bool
    partial: bool


@dataclass(frozen=True)
class _Axis:
    """Emitter of the samples along an axis of `length` inputs, in bins of `each` inputs from `start` on."""

    vec: Vector  # of one lane
    start: Any
    each: Any
    count: Any  # of samples of a bin, i64
    length: Any
    stride: Any

    def sides(self, bin_: Any, sample: Any) -> list[tuple[Any, Any]]:
        """Byte offset and weight of the inputs before and after a sample."""
        vec, builder = self.vec, self.vec.builder
        zero, one = FLOAT(0.0), FLOAT(1.0)
        number, within, count = (builder.sitofp(each, FLOAT) for each in (bin_, sample, self.count))
        step = builder.fdiv(builder.fmul(builder.fadd(within, FLOAT(0.5)), self.each), count)
        at = builder.fadd(builder.fadd(self.start, builder.fmul(number, self.each)), step)
        size = builder.sitofp(self.length, FLOAT)
        last = builder.fsub(size, one)
        present = builder.and_(builder.fcmp_ordered(">=", at, FLOAT(-1.0)), builder.fcmp_ordered("<=", at, size))
        at = vec.minimum(vec.maximum(at, zero), last)
        low = builder.fptosi(at, I64)
        after = builder.fsub(at, builder.sitofp(low, FLOAT))
        end = builder.sub(self.length, I64(1))
        next_ = builder.add(low, I64(1))
        high = builder.select(builder.icmp_signed("<", next_, end), next_, end)
        weights = (builder.select(present, each, zero) for each in (builder.fsub(one, after), after))
        return [(builder.mul(at, self.stride), weight) for at, weight in zip((low, high), weights, strict=True)]


def _axes(tile: RegionTile, builder: Any, roi: Any, scale: Any, ratio: Any, bins: Any, sizes: Any, strides: Any) -> Any:
    """The axes y and x of a region; without samples if its coordinates are no numbers."""
    one = Vector(builder, 1)
    numbers = builder.inttoptr(roi, FLOAT.as_pointer())
    factor = builder.load(builder.inttoptr(scale, FLOAT.as_pointer()))
    ends = [builder.fmul(builder.load(builder.gep(numbers, [I64(at)])), factor) for at in range(4)]
    ends = [builder.fsub(end, FLOAT(0.5 if tile.half else 0.0)) for end in ends]
    axes = []
    for at in (1, 0):
        side = builder.fsub(ends[at + 2], ends[at])
        finite = builder.fcmp_ordered("<", one.absolute(side), FLOAT(float("inf")))
        if not tile.half:
            side = one.maximum(side, FLOAT(1.0))
        each = builder.fdiv(side, builder.sitofp(bins[1 - at], FLOAT))
        limited = one.minimum(one.maximum(one._intrinsic("ceil", [each]), FLOAT(0.0)), FLOAT(float(MAX_SAMPLES)))
        chosen = builder.select(builder.icmp_signed(">", ratio, I64(0)), ratio, builder.fptosi(limited, I64))
        count = builder.select(finite, chosen, I64(0))
        axes.append(_Axis(one, ends[at], each, count, sizes[1 - at], strides[1 - at]))
    return axes


@MicroKernel
def fold_region(
    tile: RegionTile,
    builder: ir.IRBuilder,
    x: Any,
    x_row: Any,
    x_column: Any,
    x_vector: Any,
    roi: Any,
    scale: Any,
    ratio: Any,
    height: Any,
    width: Any,
    rows: Any,
    columns: Any,
    vectors: Any,
    valid: Any,
    y: Any,
    y_bin: Any,
    y_vector: Any,
) -> None:
    """y[bin] = mean or maximum of the samples of each of `rows` x `columns` bins, 0 without samples.

    `roi` has x0, y0, x1, y1; `ratio` samples along each axis of a bin, or as many as it has inputs if that is 0.
    """
    vec, fold = Vector(builder, tile.lanes), FOLDS[tile.fold]
    down, right = _axes(tile, builder, roi, scale, ratio, (rows, columns), (height, width), (x_row, x_column))
    total = builder.mul(down.count, right.count)
    some = builder.icmp_signed(">", total, I64(0))
    divisor = vec.splat(builder.sitofp(total, FLOAT))
    mask = first_lanes(vec, valid) if tile.partial else None
    start = vec.constant(float("-inf") if tile.fold == "max" else 0.0)

    def channels(first: Any, count: int, part: Any, row: Any, column: Any, target: Any) -> None:
        """Fold `count` vectors of channels from vector `first` on."""
        plane = builder.add(x, builder.mul(first, x_vector))

        def across(step: Any, sums: list[Any], vertical: Any) -> list[Any]:
            for (below, low), (beside, high) in ((a, b) for a in vertical for b in right.sides(column, step)):
                weight = vec.splat(builder.fmul(low, high))
                place = builder.add(plane, builder.add(below, beside))
                for j in range(count):
                    address = vec.pointer(builder.add(place, builder.mul(x_vector, I64(j))))
                    value = vec.load(address) if part is None else vec.load_masked(address, part)
                    if tile.fold == "sum":
                        sums[j] = vec.fma(value, weight, sums[j])
                    else:
                        sums[j] = fold(vec, sums[j], vec.mul(value, weight))
            return sums

        def along(step: Any, sums: list[Any]) -> list[Any]:
            vertical = down.sides(row, step)
            return list(repeat(vec, I64(0), right.count, sums, lambda at, each: across(at, each, vertical)))

        for j, value in enumerate(repeat(vec, I64(0), down.count, [start] * count, along)):
            value = vec.div(value, divisor) if tile.fold == "sum" else value
            value = builder.select(some, value, vec.constant(0.0))
            place = vec.offset(target, builder.mul(builder.add(first, I64(j)), y_vector))
            if part is None:
                vec.store(value, place)
            else:
                vec.store_masked(value, place, part)

    def bins(row: Any) -> None:
        def one_bin(column: Any) -> None:
            number = builder.add(builder.mul(row, columns), column)
            target = vec.offset(vec.pointer(y), builder.mul(number, y_bin))

            def groups(count: int) -> Any:
                def body(group: Any, values: list[Any]) -> list[Any]:
                    channels(builder.mul(group, I64(count)), count, None, row, column, target)
                    return values

                return body

            whole = builder.sub(vectors, I64(1)) if tile.partial else vectors
            fours = builder.sdiv(whole, I64(_TOGETHER))
            repeat(vec, I64(0), fours, [], groups(_TOGETHER))
            repeat(vec, builder.mul(fours, I64(_TOGETHER)), whole, [], groups(1))
            if tile.partial:
                channels(whole, 1, mask, row, column, target)

        loop(builder, 0, columns, one_bin)

    loop(builder, 0, rows, bins)


_call_region = fold_region.caller()


@dataclass(frozen=True)
class RegionsTile:
    """Tile of the driver; `planes`: the bins of a channel are contiguous in the output, not the channels of a bin."""

    lanes: int
    planes: bool


def _nothing(tile, args, bins, sums, y):
    pass


def _to_planes(tile, args, bins, sums, y):
    for channel in range(0, args.channels, tile.lanes):
        present = min(tile.lanes, args.channels - channel)
        source = sums + 4 * channel
        target = y + channel * 4 * bins
        if bins >= tile.lanes:
            for block in range(0, bins, tile.lanes):
                first = min(block, bins - tile.lanes)
                at = source + first * args.y_bin
                transpose_part(tile, at, args.y_bin, tile.lanes, target + 4 * first, 4 * bins, present)
        else:
            for bin_ in range(bins):
                for at in range(present):
                    copy_float(tile, source + bin_ * args.y_bin + 4 * at, target + 4 * (at * bins + bin_))


@specialise_on_tile(lambda tile: _to_planes if tile.planes else _nothing)
def _stored(tile, args, bins, sums, y):
    """Transpose the bins of a region to the planes of the output."""


@kernel(
    "fold_region x rois images images_step y regions batch height width rows columns channels vectors valid ratio "
    "scale x_image x_vector x_row x_column roi y_region y_bin y_vector sums sums_step"
)
def roi_align(tile, worker, before, part, parts, args):
    """Units are regions; an image that does not exist is replaced by the nearest one."""
    bins = args.rows * args.columns
    for region in range(args.regions * part // parts, args.regions * (part + 1) // parts):
        image = max(0, min(args.batch - 1, word(tile, args.images + region * args.images_step, 0)))
        y = args.y + region * args.y_region
        sums = args.sums + worker * args.sums_step
        _call_region(
            args.fold_region,
            x=args.x + image * args.x_image,
            x_row=args.x_row,
            x_column=args.x_column,
            x_vector=args.x_vector,
            roi=args.rois + region * args.roi,
            scale=args.scale,
            ratio=args.ratio,
            height=args.height,
            width=args.width,
            rows=args.rows,
            columns=args.columns,
            vectors=args.vectors,
            valid=args.valid,
            y=sums if tile.planes else y,
            y_bin=args.y_bin,
            y_vector=args.y_vector,
        )
        _stored(tile, args, bins, sums, y)


def seconds(processor: Processor, shape: tuple[int, ...], regions: int, bins: int, ratio: int) -> float:
    """Modelled time for regions of images of `shape` (N, C, H, W), in seconds; adaptive bins have four samples."""
    lanes, samples = processor.isa.lanes, ratio**2 if ratio > 0 else 4
    cycles = regions * bins * samples * divide(shape[1], lanes) * _CYCLES
    return processor.moving(F32.bytes * regions * bins * shape[1]) + processor.computing(cycles * lanes)


def roi_align_steps(
    processor: Processor,
    space: Space,
    stated: Attributes,
    x: TensorView,
    rois: TensorView,
    images: TensorView,
    y: TensorView,
) -> list[Step]:
    """Kernel calls for images (N, C, H, W) of any form, dense regions (R, 4), and int64 numbers of their images (R).

    The output (R, C, rows, columns) is dense, or in channel blocks as the input.
    """
    lanes, steps = processor.isa.lanes, list[Step]()
    if x.block == 1:
        steps, x = channels_last(processor, space, x)
    batch, channels, height, width = x.shape
    vectors, vector = divide(channels, lanes), lanes * F32.bytes
    rows, columns = y.shape[2:]
    planes = y.block == 1
    fold = "max" if stated["mode"] == "max" else "sum"
    half = stated["coordinate_transformation_mode"] == "half_pixel"
    blocked = x.block > 1
    valid = channels - (vectors - 1) * lanes
    args: Args = {
        "fold_region": MicroRef(fold_region, RegionTile(lanes, fold, half, partial=not blocked)),
        "x": x.ref,
        "rois": rois.ref,
        "images": images.ref,
        "images_step": images.strides[0],
        "y": y.ref,
        "regions": y.shape[0],
        "batch": batch,
        "height": height,
        "width": width,
        "rows": rows,
        "columns": columns,
        "channels": channels,
        "vectors": vectors,
        "valid": lanes if blocked else valid,
        "ratio": stated["sampling_ratio"],
        "scale": np.array([stated["spatial_scale"]], np.float32),
        "x_image": x.strides[0],
        "x_vector": x.strides[1] if blocked else vector,
        "x_row": x.strides[2],
        "x_column": x.strides[3],
        "roi": rois.strides[0],
        "y_region": y.strides[0],
        "y_bin": vectors * vector if planes else y.strides[3],
        "y_vector": vector if planes else y.strides[1],
        **worker_args("sums", space, rows * columns * vectors * vector if planes else 0, processor.threads),
    }
    parts = processor.parts(4 * y.size)
    return [*steps, Step(roi_align, RegionsTile(lanes, planes), args, parts)]
