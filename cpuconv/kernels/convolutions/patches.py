"""Convolution of any element types by patches: im2col to one contiguous row per output pixel, then GEMM tiles.

A patch has the elements of a group in the receptive field, in the order (kernel row, kernel column, channel), padded
with zeros to whole 32-bit groups. The work is cut into units (image, group, block of pixels, chunk of weight panels).
The patches of a block stay in L2 while all weight panels use them. Sums are stored to a buffer of channel blocks, of
the output's elements, and copied to any view. A residual is first copied to such a buffer.
"""

from __future__ import annotations

from autotune.data_classes import dataclass
from cpuconv.kernels.convolutions.sums_to_views import no_residual, pack_residual, unpack_sums, zero_tail
from cpuconv.kernels.copies.rows import RowTile, channel_offset, copy_bytes
from cpuconv.kernels.emit.intrinsics import copy_element, fill_element, zero_element
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.products.gemm import call_gemm_strip
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel


@dataclass(frozen=True)
class PatchTile:
    """How patches are made and how sums are copied to the output; the GEMM micro-kernel is an argument.

    Attributes
    ----------
    lanes : int
    taps : RowTile
        Elements of the input.
    beside : bool
        Channels of a group are contiguous.
    residual : bool
    vectors_per_pixel : int
        Vectors of sums per vector of the output's elements.
    rows, extra : RowTile
        Loops that copy a buffer to the output, and the residual to a buffer.
    whole : bool
        The loops of the output write whole channel blocks.
    """

    lanes: int
    taps: RowTile
    beside: bool
    residual: bool
    vectors_per_pixel: int
    rows: RowTile
    extra: RowTile
    whole: bool


def _tap_beside(tile, args, source, first, to):
    start = source + channel_offset(first, args.x_block, args.x_cb, args.x_c)
    copy_bytes(tile.taps, start, to, args.group_channels * tile.taps.bytes)


def _tap_apart(tile, args, source, first, to):
    for channel in range(args.group_channels):
        start = source + channel_offset(first + channel, args.x_block, args.x_cb, args.x_c)
        copy_element(tile.taps, start, to + channel * tile.taps.bytes)


@specialise_on_tile(lambda tile: _tap_beside if tile.beside else _tap_apart)
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


@specialise_on_tile(lambda tile: pack_residual if tile.residual else no_residual)
def _pack_residual(tile, args, image, channel, valid, buffer, first, last):
    """Copy pixels first … last-1 of channels channel … channel+valid-1 of the residual to a buffer."""


@kernel(
    "gemm gemm_last tile_vectors tile_columns x y w bias bias_vector bias_group residual fill table segments "
    "panel_bytes panels groups chunks blocks batch tiles pixels columns columns_step patch spare sums extra sums_step "
    "vector_step channels stored group_kernels group_channels kernel_h kernel_w stride_h stride_w dilation_h "
    "dilation_w pad_top pad_left in_height in_width out_width x_image x_block x_cb x_c x_h x_w y_image y_width "
    "y_block y_cb y_c y_h y_w r_image r_block r_cb r_c r_h r_w tails"
)
def patches(tile, worker, before, part, parts, args):
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
        if packed != place:
            packed = place
            for pixel in range(first, last):
                to = columns + (pixel - first) * args.patch
                _patch(tile, args, x, group * args.group_channels, pixel, to)
        for panel in range(args.panels * chunk // args.chunks, args.panels * (chunk + 1) // args.chunks):
            begin = panel * args.tile_vectors * lanes  # channels of the group before this panel
            end = min(begin + args.tile_vectors * lanes, args.group_kernels)
            channel = group * args.group_kernels
            if tile.residual:
                for at in range(begin, end, tile.vectors_per_pixel * lanes):
                    valid = min(tile.vectors_per_pixel * lanes, end - at)
                    to_extra = extra + (at - begin) // (tile.vectors_per_pixel * lanes) * args.vector_step
                    _pack_residual(tile, args, image, channel + at, valid, to_extra, first, last)
            call_gemm_strip(
                args.gemm_last if panel == args.panels - 1 else args.gemm,
                x=columns - first * args.patch,
                xrow=0,
                table=args.table,
                segments=args.segments,
                kstep=0,
                w=args.w + (group * args.panels + panel) * args.panel_bytes,
                y=sums - first * pixel_bytes,
                yrow=0,
                yvec=args.vector_step,
                bias=args.bias + group * args.bias_group + panel * args.tile_vectors * args.bias_vector,
                residual=extra - sums,
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
            for at in range(begin, end, tile.vectors_per_pixel * lanes):
                valid = min(tile.vectors_per_pixel * lanes, end - at)
                buffer = sums + (at - begin) // (tile.vectors_per_pixel * lanes) * args.vector_step
                unpack_sums(tile, args, y, channel + at, valid, buffer, first, last)
        if not tile.whole and group == args.groups - 1 and chunk == args.chunks - 1:
            zero_tail(tile, args, y, first, last)
