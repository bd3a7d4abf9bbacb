"""Convolution by lane tiles: the driver of depthwise and grouped convolution.

The work is cut into units (image, channel block, block of tile rows); a worker takes a contiguous range of them.
Blocked input is read in place: tiles of the first and last column leave out the taps over padding, and rows outside
the input are read from a row of zeros. Input in any other layout is packed first, with its padding, a channel block
and a row block at a time, into a band of the worker's workspace that stays in the nearest cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpuconv.micro.lanes import LaneTile, lane_tile
from cpuconv.micro.rows import RowTile, pack_row, zero_pixels
from cpuconv.runtime.kernel import inline, kernel


@dataclass(frozen=True)
class LanewiseTile:
    """Lane tiles of the first, the middle and the last column of tiles, and how bands are packed."""

    lanes: int
    inner: LaneTile
    left: LaneTile
    right: LaneTile
    has_left: bool  # the first column of tiles is `left`, not `inner`
    has_right: bool  # the last one is `right`
    band: bool  # rows are packed to a band
    pack: RowTile


@inline
def _pack_band(tile, args, image, block, first_row, rows, worker):
    """Input rows first_row … first_row+rows-1 of a channel block, padding included, to the worker's band."""
    pixel = 4 * tile.lanes
    target = args.band + worker * args.band_step
    channel = block * tile.lanes
    valid = min(tile.lanes, args.channels - channel)
    for row in range(rows):
        to = target + row * args.x_line
        source_row = first_row + row
        if source_row < 0 or source_row >= args.in_height:
            zero_pixels(tile, to, args.band_width)
            continue
        source = args.x + image * args.x_image + source_row * args.x_h
        start = to + args.pad_left * pixel
        zero_pixels(tile, to, args.pad_left)
        pack_row(tile.pack, source, channel, valid, args.x_block, args.x_cb, args.x_c, args.x_w, start, args.inside)
        zero_pixels(tile, start + args.inside * pixel, args.band_width - args.pad_left - args.inside)
    return target


@inline
def _tile(tile, args, x, y, w, bias, row, column):
    """One lane tile: `x` and `y` are the addresses of input pixel (0, -left padding) and of output pixel (0, 0)."""
    pixel = 4 * tile.lanes
    source_row = row * args.stride_h - args.pad_top
    target = y + row * args.y_line + column * pixel
    lane_tile(
        tile,
        x + source_row * args.x_line + column * args.stride_w * pixel,
        args.x_line,
        source_row,
        args.in_height,
        args.zeros,
        args.kernel_rows,
        w,
        target,
        args.y_line,
        bias,
        target + args.residual - args.y,
    )


@kernel(
    "x y w bias residual zeros weight_bytes kernel_rows channels batch blocks row_blocks row_tiles column_tiles "
    "height width low high in_height stride_h stride_w pad_top pad_left reach x_image x_line y_image y_line y_vector "
    "band band_step band_width inside x_block x_cb x_c x_h x_w"
)
def lanewise(tile, worker, workers, args):
    """y = epilogue(depthwise or grouped convolution of x and w), blocked output; see the module.

    Middle tiles start at output columns low … high, tile columns `cols` apart.
    """
    rows = tile.inner.rows
    cols = tile.inner.cols
    units = args.batch * args.blocks * args.row_blocks
    for unit in range(units * worker // workers, units * (worker + 1) // workers):
        row_block = unit % args.row_blocks
        plane = unit // args.row_blocks
        block = plane % args.blocks
        image = plane // args.blocks
        row_tiles = args.row_tiles * row_block // args.row_blocks
        next_row_tiles = args.row_tiles * (row_block + 1) // args.row_blocks
        y = args.y + image * args.y_image + block * args.y_vector
        w = args.w + block * args.weight_bytes
        bias = args.bias + block * 4 * tile.lanes
        if tile.band:
            first = min(row_tiles * rows, args.height - rows)
            last = min(next_row_tiles * rows, args.height)
            source_row = first * args.stride_h - args.pad_top
            packed = _pack_band(
                tile, args, image, block, source_row, (last - first - 1) * args.stride_h + args.reach, worker
            )
            x = packed - source_row * args.x_line
        else:
            x = args.x + image * args.x_image + block * args.x_cb - args.pad_left * 4 * tile.lanes
        for row_tile in range(row_tiles, next_row_tiles):
            row = min(row_tile * rows, args.height - rows)
            for column_tile in range(args.column_tiles):
                if tile.has_left and column_tile == 0:
                    _tile(tile.left, args, x, y, w, bias, row, 0)
                elif tile.has_right and column_tile == args.column_tiles - 1:
                    _tile(tile.right, args, x, y, w, bias, row, args.width - cols)
                else:
                    column = min(max(column_tile * cols, args.low), args.high)
                    _tile(tile.inner, args, x, y, w, bias, row, column)
