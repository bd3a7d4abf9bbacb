"""Columns of deformable convolutions: what the taps of a window read at moved positions, in channel blocks.

Source: Dai et al., "Deformable Convolutional Networks" (2017), and its second version (Zhu et al., 2019) with a factor
per tap. A vector of outputs becomes offsets and weights of inputs (`taps`), which all channels of an offset group use.
"""

from __future__ import annotations

from collections.abc import Sequence

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.kernels.binding.arguments import stride_args, worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.sampling.sums import SumTile, sum_taps
from cpuconv.kernels.sampling.taps import OffsetTile, find_moved_taps
from cpuconv.problem.window import Window
from cpuconv.runtime.kernel import kernel

_CYCLES = 0.6  # per element of the columns: four loads and a store of a vector


@dataclass(frozen=True)
class ColumnsTile:
    """Tile of the driver: lanes, taps of a point, and whether there is a factor per tap of the window."""

    lanes: int
    taps: int
    masked: bool


_call_taps, _call_sums = find_moved_taps.caller(), sum_taps.caller()


@kernel(
    "find_taps sum_taps x offset mask y images height width out_height out_width kernel_h kernel_w stride_h stride_w "
    "dilation_h dilation_w pad_top pad_left offset_groups group_cells cells vectors x_image x_vector x_row x_column "
    "offset_image mask_image plane y_image y_vector y_row y_column space space_step"
)
def deformed_columns(tile, worker, before, part, parts, args):
    """Units are (image, output row). A cell is the channels of one group and one offset group.

    `group_cells` counts the cells of a group, `cells` those of an offset group, `vectors` the channel blocks of a cell.
    """
    lanes = tile.lanes
    offsets = args.space + worker * args.space_step
    weights = offsets + 4 * lanes * tile.taps
    taps = args.kernel_h * args.kernel_w
    units = args.images * args.out_height
    for unit in range(units * part // parts, units * (part + 1) // parts):
        image = unit // args.out_height
        row = unit - image * args.out_height
        x = args.x + image * args.x_image
        y = args.y + image * args.y_image + row * args.y_row
        for group in range(args.offset_groups):
            for tap in range(taps):
                kernel_row = tap // args.kernel_w
                kernel_column = tap - kernel_row * args.kernel_w
                number = group * taps + tap
                for first in range(0, args.out_width, lanes):
                    count = min(lanes, args.out_width - first)
                    place = 4 * (row * args.out_width + first)
                    _call_taps(
                        args.find_taps,
                        moved=args.offset + image * args.offset_image + 2 * number * args.plane + place,
                        axis=args.plane,
                        factors=args.mask + image * args.mask_image + number * args.plane + place,
                        points=count,
                        top=row * args.stride_h + kernel_row * args.dilation_h - args.pad_top,
                        left=first * args.stride_w + kernel_column * args.dilation_w - args.pad_left,
                        step=args.stride_w,
                        height=args.height,
                        width=args.width,
                        row=args.x_row,
                        column=args.x_column,
                        offsets=offsets,
                        weights=weights,
                    )
                    for cell in range(group * args.cells, (group + 1) * args.cells):
                        within = cell % args.group_cells
                        block = ((cell - within) * taps + tap * args.group_cells + within) * args.vectors
                        _call_sums(
                            args.sum_taps,
                            x=x + cell * args.vectors * args.x_vector,
                            x_vector=args.x_vector,
                            offsets=offsets,
                            weights=weights,
                            points=count,
                            vectors=args.vectors,
                            valid=lanes,
                            y=y + block * args.y_vector + first * args.y_column,
                            y_point=args.y_column,
                            y_vector=args.y_vector,
                        )


def seconds(processor: Processor, read: int, written: int) -> float:
    """Modelled time for so many elements of the input and of the columns, in seconds."""
    return processor.moving((read + written) * F32.bytes) + processor.computing(
        written * _CYCLES * processor.isa.lanes / 16
    )


def columns_step(
    processor: Processor,
    space: Space,
    window: Window,
    groups: Sequence[int],
    x: TensorView,
    offset: TensorView,
    mask: TensorView | None,
    y: TensorView,
) -> Step:
    """One kernel call that makes columns (N, C · taps, Ho, Wo) of images (N, C, H, W), both in channel blocks.

    `groups`: of the weights, of the offsets, and their least common multiple, whose cells fill whole blocks. Offsets
    and mask are dense, except for the distance of images.
    """
    lanes, taps = processor.isa.lanes, 4
    images, channels, height, width = x.shape
    weight_groups, offset_groups, cells = groups
    out_height, out_width = window.outputs
    args: Args = {
        "find_taps": MicroRef(find_moved_taps, OffsetTile(lanes, "linear", "zeros", True, masked=mask is not None)),
        "sum_taps": MicroRef(sum_taps, SumTile(lanes, taps, partial=False)),
        "x": x.ref,
        "offset": offset.ref,
        "mask": mask.ref if mask else 0,
        "y": y.ref,
        "images": images,
        "height": height,
        "width": width,
        "out_height": out_height,
        "out_width": out_width,
        **dict(zip(("kernel_h", "kernel_w"), window.kernel, strict=True)),
        **dict(zip(("stride_h", "stride_w"), window.strides, strict=True)),
        **dict(zip(("dilation_h", "dilation_w"), window.dilations, strict=True)),
        **dict(zip(("pad_top", "pad_left"), window.near, strict=True)),
        "offset_groups": offset_groups,
        "group_cells": cells // weight_groups,
        "cells": cells // offset_groups,
        "vectors": channels // cells // lanes,
        **stride_args("x", x.strides, "image vector row column"),
        "offset_image": offset.strides[0],
        "mask_image": mask.strides[0] if mask else 0,
        "plane": out_height * out_width * F32.bytes,
        **stride_args("y", y.strides, "image vector row column"),
        **worker_args("space", space, 2 * taps * lanes * F32.bytes, processor.threads),
    }
    return Step(deformed_columns, ColumnsTile(lanes, taps, mask is not None), args, processor.parts(x.size + y.size))
