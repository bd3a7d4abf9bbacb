"""Packing of im2col columns: A[c·R·S + r·S + s][pixel] for a range of output pixels, from any view of the input.

Rows of columns have `lanes` spare float32, so that short runs are copied as whole vectors whose excess is overwritten.
"""

from __future__ import annotations

from cpuconv.kernels.copies.rows import channel_offset
from cpuconv.kernels.emit.intrinsics import copy_float, copy_vector, zero_vector
from cpuconv.kernels.emit.transpose import transpose_block, transpose_part
from cpuconv.kernels.emit.vector_copies import copy_alternate
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline

IN_PLACE, LINES, VECTORS = range(3)
"""How columns are made: the input is the matrix; one channel at a time; `lanes` channels at a time."""


@inline
def zero_columns(tile, target, row_step, rows, width):
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
        zero_columns(tile, target, row_step, rows, left - begin)
        source = plane + in_row * args.x_h + (left * args.stride_w + shift) * args.x_w
        step = args.stride_w * args.x_w
        to = target + (left - begin) * 4
        if right > left:
            _move(tile, source, step, to, row_step, rows, right - left, end)
        zero_columns(tile, to + (right - left) * 4, row_step, rows, stop - right)
        target += (stop - begin) * 4
        count -= stop - begin
        begin = 0
        row += 1


def pack_columns(tile, args, x, group, target, first, count):
    """Pack the columns of pixels first … first+count-1 of a group, with rows `args.pitch` bytes apart."""
    taps = args.kernel_h * args.kernel_w
    end = args.x + args.x_span
    channel = 0
    while channel < args.group_channels:
        rows = 1
        if tile.load == VECTORS and channel + tile.lanes <= args.group_channels:
            rows = tile.lanes
        plane = x + channel_offset(group * args.group_channels + channel, args.x_block, args.x_cb, args.x_c)
        for r in range(args.kernel_h):
            for s in range(args.kernel_w):
                to = target + (channel * taps + r * args.kernel_w + s) * args.pitch
                _pack_tap(tile, args, plane, r, s, to, taps * args.pitch, rows, first, count, end)
        channel += rows
