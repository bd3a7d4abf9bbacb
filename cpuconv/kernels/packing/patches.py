"""Packing of patches: the elements of a group in the receptive field of each output pixel, in one contiguous row.

Their order is (kernel row, kernel column, channel). Zeros pad a patch to whole 32-bit groups.
"""

from __future__ import annotations

from cpuconv.kernels.copies.rows import channel_offset, copy_bytes
from cpuconv.kernels.emit.intrinsics import copy_element, fill_element, zero_element
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline

ADJACENT, APART = 3, 4
"""Whether the channels of a group are contiguous in the input; distinct from the numbers in `columns`."""


def _tap_adjacent(tile, args, source, first, to):
    start = source + channel_offset(first, args.x_block, args.x_cb, args.x_c)
    copy_bytes(tile.taps, start, to, args.group_channels * tile.taps.bytes)


def _tap_apart(tile, args, source, first, to):
    for channel in range(args.group_channels):
        start = source + channel_offset(first + channel, args.x_block, args.x_cb, args.x_c)
        copy_element(tile.taps, start, to + channel * tile.taps.bytes)


@specialise_on_tile(lambda tile: _tap_adjacent if tile.load == ADJACENT else _tap_apart)
def _tap(tile, args, source, first, to):
    """Copy the channels of a group, from channel `first` on, of the input pixel at `source`."""


@inline
def _patch(tile, args, x, first, pixel, to):
    """Make the patch of an output pixel, of channels first … first+group_channels-1, at `to`."""
    size = tile.taps.bytes
    row = pixel // args.out_width * args.stride_h - args.pad_top
    column = pixel % args.out_width * args.stride_w - args.pad_left
    for r in range(args.kernel_h):
        in_row = row + r * args.dilation_h
        for s in range(args.kernel_w):
            in_column = column + s * args.dilation_w
            if 0 <= in_row < args.in_height and 0 <= in_column < args.in_width:
                _tap(tile, args, x + in_row * args.x_h + in_column * args.x_w, first, to)
            else:
                for channel in range(args.group_channels):
                    fill_element(tile.taps, to + channel * size, args.fill)
            to += args.group_channels * size
    for i in range(args.spare):
        zero_element(tile.taps, to + i * size)


def pack_patches(tile, args, x, group, target, first, count):
    """Pack the patches of pixels first … first+count-1 of a group."""
    for at in range(count):
        _patch(tile, args, x, group * args.group_channels, first + at, target + at * args.patch)
