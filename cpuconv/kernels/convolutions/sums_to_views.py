"""Copies between buffers of channel blocks and any view: sums to the output, and the residual to a buffer.

A buffer has the pixels first … last-1 of an output plane; each output row is a run of pixels in the view. The tile
selects the copy loops: `rows` for the output, `extra` for the residual.
"""

from __future__ import annotations

from cpuconv.kernels.copies.rows import channel_offset, pack_row, unpack_row
from cpuconv.kernels.emit.intrinsics import zero_element
from cpuconv.runtime.kernel import inline


def no_residual(tile, args, image, channel, valid, buffer, first, last):
    pass


def pack_residual(tile, args, image, channel, valid, buffer, first, last):
    """Copy pixels of channels channel … channel+valid-1 of the residual to a buffer."""
    start = args.residual + image * args.r_image
    while first < last:
        row = first // args.y_width
        column = first - row * args.y_width
        width = min(args.y_width - column, last - first)
        place = start + row * args.r_h + column * args.r_w
        pack_row(tile.extra, place, channel, valid, args.r_block, args.r_cb, args.r_c, args.r_w, buffer, width)
        buffer += width * 4 * tile.lanes
        first += width


@inline
def unpack_sums(tile, args, y, channel, valid, buffer, first, last):
    """Copy a buffer to pixels of channels channel … channel+valid-1 of the output."""
    while first < last:
        row = first // args.y_width
        column = first - row * args.y_width
        width = min(args.y_width - column, last - first)
        place = y + row * args.y_h + column * args.y_w
        unpack_row(tile.rows, buffer, channel, valid, args.y_block, args.y_cb, args.y_c, args.y_w, place, width)
        buffer += width * 4 * tile.lanes
        first += width


@inline
def zero_tail(tile, args, y, first, last):
    """Zero the padding channels of the output's last block, in these pixels."""
    for channel in range(args.channels, args.stored):
        lane = y + channel_offset(channel, args.y_block, args.y_cb, args.y_c)
        for pixel in range(first, last):
            row = pixel // args.y_width
            zero_element(tile.rows, lane + row * args.y_h + (pixel - row * args.y_width) * args.y_w)
