"""Convolution whose vectors run along pixels: panels of columns under all weight tiles, sums straight to planes.

The work is cut into units (image, group, panel of pixels, chunk of weight tiles); pixels count flat over the output
plane. A panel is a few vectors of pixels of every column A[c·R·S + r·S + s], one below the other; it is packed into the
worker's workspace, or read where it lies if the input's planes are the columns. Weights are the scalars of the GEMM
tile, so that it stores rows of output planes. The last panel of a plane may have fewer vectors, the last one in part.

Where a panel does not stay in L1, the reduction is cut into parts, and the sums of a part wait in a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpuconv.micro.choice import choose
from cpuconv.micro.gemm import call_gemm_strip
from cpuconv.micro.im2col import LINES, pack_columns
from cpuconv.micro.intrinsics import copy_float, copy_vector
from cpuconv.runtime.kernel import kernel

IN_PLACE, COLUMNS, PLANES = range(3)
"""How a panel comes about: the input's planes are read in place; any columns; planes that are the columns."""


@dataclass(frozen=True)
class PlanarTile:
    """How panels are packed; the GEMM micro-kernels are arguments."""

    lanes: int
    pack: int
    load: int = LINES


def _nothing(tile, args, x, group, target, first, count):
    pass


def _copy(tile, args, x, group, target, first, count):
    source = x + group * args.group_channels * args.x_cb + first * 4
    whole = count - count % tile.lanes
    for _ in range(args.group_channels):
        for i in range(0, whole, tile.lanes):
            copy_vector(tile, source + 4 * i, target + 4 * i)
        for i in range(whole, count):
            copy_float(tile, source + 4 * i, target + 4 * i)
        source += args.x_cb
        target += args.pitch


@choose(lambda tile: {IN_PLACE: _nothing, COLUMNS: pack_columns, PLANES: _copy}[tile.pack])
def _pack_panel(tile, args, x, group, target, first, count):
    """The columns of pixels first … first+count-1 of a group, rows `args.pitch` bytes apart."""


@kernel(
    "gemm gemm_first gemm_middle gemm_last gemm_last_first gemm_last_middle x y w bias residual table segments parts "
    "segment_rows segment_bytes tile_bytes group_bytes tiles panels panel_pixels pixels groups chunks batch columns "
    "columns_step pitch parked parked_step vector_bytes group_kernels group_channels kernel_h kernel_w stride_h "
    "stride_w dilation_h dilation_w pad_top pad_left in_height in_width out_width x_span x_image x_block x_cb x_c x_h "
    "x_w y_image y_plane"
)
def planar(tile, worker, workers, args):
    """y = epilogue(convolution of x and w), output in planes; see the module."""
    units = args.batch * args.groups * args.panels * args.chunks
    columns = args.columns + worker * args.columns_step
    parked = args.parked + worker * args.parked_step
    packed = -1
    for unit in range(units * worker // workers, units * (worker + 1) // workers):
        chunk = unit % args.chunks
        place = unit // args.chunks
        panel = place % args.panels
        group = place // args.panels % args.groups
        image = place // (args.panels * args.groups)
        first = panel * args.panel_pixels
        last = panel == args.panels - 1
        count = args.pixels - first if last else args.panel_pixels
        x = args.x + image * args.x_image
        next_panel = 4 * args.panel_pixels
        channel = group * args.group_kernels
        if tile.pack == 0:
            columns = x + group * args.group_channels * args.x_cb + first * 4
        elif packed != place:
            packed = place
            _pack_panel(tile, args, x, group, columns, first, count)
        for part in range(args.parts):
            segment = args.segments * part // args.parts
            if part == args.parts - 1:
                gemm = args.gemm_last if last else args.gemm
            elif part == 0:
                gemm = args.gemm_last_first if last else args.gemm_first
            else:
                gemm = args.gemm_last_middle if last else args.gemm_middle
            call_gemm_strip(
                gemm,
                args.w + group * args.group_bytes + segment * args.segment_bytes,
                args.tile_bytes,
                args.table,
                args.segments * (part + 1) // args.parts - segment,
                args.pitch,
                columns + segment * args.segment_rows * args.pitch,
                args.y + image * args.y_image + channel * args.y_plane + first * 4,
                args.y_plane,
                args.vector_bytes,
                args.bias + channel * 4,
                args.residual - args.y,
                parked,
                x + (group * args.group_channels + segment * args.segment_rows) * args.x_cb + 4 * first + next_panel,
                args.x_cb,
                args.tiles * chunk // args.chunks,
                args.tiles * (chunk + 1) // args.chunks,
                args.group_kernels,
            )
