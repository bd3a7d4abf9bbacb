"""Convolution with vectors along pixels: panels of columns times all weight tiles, sums stored to planes.

The work is cut into units (image, group, panel of pixels, chunk of weight tiles); pixels are counted over the whole
output plane. A panel is a few vectors of pixels of every column A[c·R·S + r·S + s], one below the other. It is packed
into the worker's workspace, or read in place if the input's planes are the columns. Weights are the scalars of the GEMM
tile, so that it stores rows of output planes. The last panel of a plane may have fewer vectors, the last one partial.

Where a panel does not stay in L1, the reduction is cut into parts, with the sums in a buffer between parts.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.emit.intrinsics import copy_float, copy_vector, zero_vector
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.emit.vector_copies import copy_every
from cpuconv.kernels.packing.columns import LINES, pack_columns
from cpuconv.kernels.products.gemm import call_gemm_strip
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel

IN_PLACE, PLANES, ROWS, ANY = range(4)
"""How a panel is made: from the input's planes, in place or copied; from rows of pixels; from any view."""


@dataclass(frozen=True)
class PlanarTile:
    """How panels are packed; the GEMM micro-kernels are arguments."""

    lanes: int
    pack: int
    step: int = 1  # stride of the pixels of a column, in float32
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


@inline
def _zero(tile, target, width):
    for i in range(0, width, tile.lanes):
        zero_vector(tile, target + 4 * i)


@inline
def _move(tile, source, target, width, end):
    """Copy `width` pixels of a column as whole vectors, which write past the run; nothing from `end` on is read."""
    done = 0
    while done < width and source + (done + tile.lanes) * tile.step * 4 <= end:
        copy_every(tile, source + done * tile.step * 4, target + done * 4)
        done += tile.lanes
    for i in range(done, width):
        copy_float(tile, source + i * tile.step * 4, target + i * 4)


def _rows(tile, args, x, group, target, first, count):
    end = args.x + args.x_span
    taps = args.kernel_h * args.kernel_w
    x += group * args.group_channels * args.x_cb
    row = first // args.out_width
    begin = first - row * args.out_width
    while count > 0:  # a run of pixels in one row of the output
        stop = min(args.out_width, begin + count)
        for tap in range(taps):
            r = tap // args.kernel_w
            shift = (tap - r * args.kernel_w) * args.dilation_w - args.pad_left
            in_row = row * args.stride_h + r * args.dilation_h - args.pad_top
            left = right = stop  # pixels left … right-1 read inside the image
            if 0 <= in_row < args.in_height:
                left = min(max(begin, -(shift // args.stride_w)), stop)
                right = max(left, min(stop, -((shift - args.in_width) // args.stride_w)))
            source = x + in_row * args.x_h + (left * args.stride_w + shift) * 4
            line = target + tap * args.pitch
            for _ in range(args.group_channels):
                _zero(tile, line, left - begin)
                _move(tile, source, line + (left - begin) * 4, right - left, end)
                _zero(tile, line + (right - begin) * 4, stop - right)
                source += args.x_cb
                line += taps * args.pitch
        target += (stop - begin) * 4
        count -= stop - begin
        begin = 0
        row += 1


@specialise_on_tile(lambda tile: {IN_PLACE: _nothing, PLANES: _copy, ROWS: _rows, ANY: pack_columns}[tile.pack])
def _pack_panel(tile, args, x, group, target, first, count):
    """Pack the columns of pixels first … first+count-1 of a group, rows `args.pitch` bytes apart, with a vector to
    spare."""


@kernel(
    "gemm gemm_first gemm_middle gemm_last gemm_last_first gemm_last_middle x y w bias residual table segments parts "
    "segment_rows segment_bytes tile_bytes group_bytes tiles panels panel_pixels pixels groups chunks batch columns "
    "columns_step pitch suspended suspended_step vector_bytes group_kernels group_channels kernel_h kernel_w stride_h "
    "stride_w dilation_h dilation_w pad_top pad_left in_height in_width out_width x_span x_image x_block x_cb x_c x_h "
    "x_w y_image y_plane shares tails valid"
)
def planar(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), output in planes; see the module."""
    units = args.batch * args.groups * args.panels * args.chunks
    columns = args.columns + worker * args.columns_step
    suspended = args.suspended + worker * args.suspended_step
    packed = last_unit(units, before, parts) // args.chunks
    for unit in range(units * part // parts, units * (part + 1) // parts):
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
        for section in range(args.parts):
            segment = args.segments * section // args.parts
            if section == args.parts - 1:
                gemm = args.gemm_last if last else args.gemm
            elif section == 0:
                gemm = args.gemm_last_first if last else args.gemm_first
            else:
                gemm = args.gemm_last_middle if last else args.gemm_middle
            call_gemm_strip(
                gemm,
                x=args.w + group * args.group_bytes + segment * args.segment_bytes,
                xrow=args.tile_bytes,
                table=args.table,
                segments=args.segments * (section + 1) // args.parts - segment,
                kstep=args.pitch,
                w=columns + segment * args.segment_rows * args.pitch,
                y=args.y + image * args.y_image + channel * args.y_plane + first * 4,
                yrow=args.y_plane,
                yvec=args.vector_bytes,
                bias=args.bias + channel * 4,
                residual=args.residual - args.y,
                suspended_sums=suspended,
                prefetch_address=x
                + (group * args.group_channels + segment * args.segment_rows) * args.x_cb
                + 4 * first
                + next_panel,
                turn=0,
                fetch_step=args.x_cb,
                shares=args.shares,
                tails=args.tails,
                valid=args.valid,
                first=args.tiles * chunk // args.chunks,
                last=args.tiles * (chunk + 1) // args.chunks,
                width=args.group_kernels,
            )
