"""im2col fused with GEMM: the columns of a block of output pixels are packed into the worker's workspace and used.

The work is cut into units (image, group, block of pixels, chunk of weight panels); pixels are counted over the whole
output plane. A block's columns A[c·R·S + r·S + s][pixel] stay in L2 while all weight panels use them. Column rows have
`lanes` spare float32, so that short runs are copied as whole vectors whose excess is overwritten.

Sums are stored directly where the group starts at a channel block of the output. Otherwise they are stored to a buffer
of blocked rows, and copied to any view. A residual is first copied to such a buffer.
"""

from __future__ import annotations

from autotune.data_classes import dataclass
from cpuconv.kernels.convolutions.sums_to_views import no_residual, pack_residual, unpack_sums, zero_tail
from cpuconv.kernels.copies.rows import RowTile, channel_offset
from cpuconv.kernels.emit.intrinsics import copy_float, copy_vector, zero_vector
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.emit.transpose import transpose_block, transpose_part
from cpuconv.kernels.emit.vector_copies import copy_alternate
from cpuconv.kernels.products.gemm import call_gemm_strip
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel

IN_PLACE, LINES, VECTORS = range(3)
"""How columns are made: the input is the matrix; one channel at a time; `lanes` channels at a time."""


@dataclass(frozen=True)
class Im2colTile:
    """How columns are packed and how sums are copied to the output; the GEMM micro-kernel is an argument."""

    lanes: int
    load: int
    residual: bool
    direct: bool  # sums are stored to the output directly
    rows: RowTile  # otherwise: loops that copy blocked rows to the output
    extra: RowTile  # loops that copy the residual to blocked rows


@inline
def _zero_run(tile, target, row_step, rows, width):
    """Zero `width` columns of `rows` column rows."""
    for row in range(rows):
        for i in range(0, width, tile.lanes):
            zero_vector(tile, target + row * row_step + 4 * i)


def _move_line(tile, source, step, target, row_step, rows, width, end):
    size = 4 * tile.lanes
    done = 0
    if step == 4:
        while done < width and source + done * 4 + size <= end:
            copy_vector(tile, source + done * 4, target + done * 4)
            done += tile.lanes
    elif step == 8:
        while done < width and source + done * 8 + 2 * size <= end:
            copy_alternate(tile, source + done * 8, target + done * 4)
            done += tile.lanes
    for i in range(done, width):
        copy_float(tile, source + i * step, target + i * 4)


def _move_vectors(tile, source, step, target, row_step, rows, width, end):
    done = 0
    if rows > 1:
        while done + tile.lanes <= width:
            transpose_block(tile, source + done * step, step, target + done * 4, row_step)
            done += tile.lanes
        if done < width:
            transpose_part(tile, source + done * step, step, width - done, target + done * 4, row_step, tile.lanes)
        return
    for i in range(width):
        copy_float(tile, source + i * step, target + i * 4)


@specialise_on_tile(lambda tile: {LINES: _move_line, VECTORS: _move_vectors}[tile.load])
def _move(tile, source, step, target, row_step, rows, width, end):
    """Copy a run of pixels, `step` bytes apart, of one channel or of `lanes` channels (`rows`) to column rows.

    For a single channel with contiguous pixels, nothing from `end` on is read.
    """


@inline
def _pack_tap(tile, args, plane, r, s, target, row_step, rows, first, count, end):
    """Pack one kernel tap of a channel (`rows` = 1) or of `lanes` channels at `plane`, for pixels first …
    first+count-1.
    """
    shift = s * args.dilation_w - args.pad_left
    low = min(max(0, -(shift // args.stride_w)), args.out_width)  # columns low … high-1 read inside the image
    high = min(max(low, -((shift - args.in_width) // args.stride_w)), args.out_width)
    row = first // args.out_width
    begin = first - row * args.out_width
    while count > 0:
        stop = min(args.out_width, begin + count)
        in_row = row * args.stride_h + r * args.dilation_h - args.pad_top
        left = right = stop
        if 0 <= in_row < args.in_height:
            left = min(max(low, begin), stop)
            right = max(left, min(high, stop))
        _zero_run(tile, target, row_step, rows, left - begin)
        source = plane + in_row * args.x_h + (left * args.stride_w + shift) * args.x_w
        step = args.stride_w * args.x_w
        to = target + (left - begin) * 4
        if right > left:
            _move(tile, source, step, to, row_step, rows, right - left, end)
        _zero_run(tile, to + (right - left) * 4, row_step, rows, stop - right)
        target += (stop - begin) * 4
        count -= stop - begin
        begin = 0
        row += 1


def _nothing(tile, args, x, group, target, first, count):
    pass


def pack_columns(tile, args, x, group, target, first, count):
    """Pack the columns of pixels first … first+count-1 of a group, with rows `args.pitch` bytes apart."""
    taps = args.kernel_h * args.kernel_w
    end = args.x + args.x_span
    channel = 0
    while channel < args.group_channels:
        rows = 1
        if tile.load == 2 and channel + tile.lanes <= args.group_channels:
            rows = tile.lanes
        plane = x + channel_offset(group * args.group_channels + channel, args.x_block, args.x_cb, args.x_c)
        for r in range(args.kernel_h):
            for s in range(args.kernel_w):
                to = target + (channel * taps + r * args.kernel_w + s) * args.pitch
                _pack_tap(tile, args, plane, r, s, to, taps * args.pitch, rows, first, count, end)
        channel += rows


@specialise_on_tile(lambda tile: _nothing if tile.load == IN_PLACE else pack_columns)
def _pack_columns(tile, args, x, group, target, first, count):
    """Pack the columns of pixels first … first+count-1 of a group."""


@specialise_on_tile(lambda tile: pack_residual if tile.residual and not tile.direct else no_residual)
def _pack_residual(tile, args, image, channel, valid, buffer, first, last):
    """Copy pixels first … last-1 of channels channel … channel+valid-1 of the residual to blocked rows."""


@kernel(
    "gemm gemm_last tile_vectors tile_columns x y w bias residual table segments tails panel_bytes panels vectors "
    "groups chunks blocks batch tiles pixels block_pixels columns columns_step pitch depth depth_padded sums extra "
    "sums_step vector_step channels stored group_kernels group_channels kernel_h kernel_w stride_h stride_w "
    "dilation_h dilation_w pad_top pad_left in_height in_width out_width x_span x_image x_block x_cb x_c x_h x_w "
    "y_image y_width y_block y_cb y_c y_h y_w r_image r_block r_cb r_c r_h r_w"
)
def im2col(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), any views; see the module."""
    lanes = tile.lanes
    pixel_bytes = 4 * lanes
    units = args.batch * args.groups * args.blocks * args.chunks
    columns = args.columns + worker * args.columns_step
    sums = args.sums + worker * args.sums_step
    extra = args.extra + worker * args.sums_step
    packed = last_unit(units, before, parts) // args.chunks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        chunk = unit % args.chunks
        place = unit // args.chunks
        block = place % args.blocks
        group = place // args.blocks % args.groups
        image = place // (args.blocks * args.groups)
        tiles = args.tiles * block // args.blocks
        next_tiles = args.tiles * (block + 1) // args.blocks
        first = min(tiles * args.tile_columns, args.pixels - args.tile_columns)  # the last tile overlaps the one before
        last = min(next_tiles * args.tile_columns, args.pixels)
        x = args.x + image * args.x_image
        y = args.y + image * args.y_image
        if tile.load == 0:
            columns = x + group * args.group_channels * args.x_cb + first * 4
        elif packed != place:
            if packed < 0:
                padding = columns + args.depth * args.pitch
                _zero_run(tile, padding, args.pitch, args.depth_padded - args.depth, args.block_pixels)
            packed = place
            _pack_columns(tile, args, x, group, columns, first, last - first)
        for panel in range(args.panels * chunk // args.chunks, args.panels * (chunk + 1) // args.chunks):
            vector = min(panel * args.tile_vectors, args.vectors - args.tile_vectors)
            channel = group * args.group_kernels + vector * lanes
            to = sums
            shift = extra - sums
            if tile.direct:
                to = y + (channel // lanes) * args.y_cb + first * pixel_bytes
                shift = args.residual - args.y  # the residual has the strides of y
            elif tile.residual:
                for j in range(args.tile_vectors):
                    valid = min(lanes, args.group_kernels - (vector + j) * lanes)
                    to_extra = extra + j * args.vector_step
                    _pack_residual(tile, args, image, channel + j * lanes, valid, to_extra, first, last)
            w = args.w + (group * args.panels + panel) * args.panel_bytes
            call_gemm_strip(
                args.gemm_last if panel == args.panels - 1 else args.gemm,
                x=columns - first * 4,
                xrow=0,
                table=args.table,
                segments=args.segments,
                kstep=args.pitch,
                w=w,
                y=to - first * pixel_bytes,
                yrow=0,
                yvec=args.vector_step,
                bias=args.bias + channel * 4,
                residual=shift,
                suspended_sums=0,
                prefetch_address=0,
                turn=0,
                fetch_step=0,
                shares=1,
                tails=args.tails,
                valid=0,
                first=tiles,
                last=next_tiles,
                width=args.pixels,
            )
            if not tile.direct:
                for j in range(args.tile_vectors):
                    valid = min(lanes, args.group_kernels - (vector + j) * lanes)
                    unpack_sums(tile, args, y, channel + j * lanes, valid, to + j * args.vector_step, first, last)
        if group == args.groups - 1 and chunk == args.chunks - 1:
            zero_tail(tile, args, y, first, last)
