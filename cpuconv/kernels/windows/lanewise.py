"""Driver of depthwise and grouped convolution by lane tiles.

The work is cut into units (image, channel block, block of tile rows), or (image, block of tile rows, channel block); a
part is a contiguous range of units. Input in channel blocks is read in place: rows and columns outside of the input are
read from a row of zeros. Input in any other layout is first packed, with its padding, to a band in the worker's
workspace. A band has one channel block and one row block, and stays in L1 or L2.

A unit has the channels of one vector of sums. With elements narrower than 32 bits, a block has several such vectors
(`in_vectors`, `out_vectors`). Where padding is not zero, each worker fills a row with the padding value. Channels-last
tensors of whole vectors are channel blocks whose pixels are further apart.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.copies.rows import RowTile, pack_row, zero_pixels
from cpuconv.kernels.emit.intrinsics import fill_vector
from cpuconv.kernels.windows.depthwise_tile import call_lane_strip
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel


@dataclass(frozen=True)
class LanewiseTile:
    """How bands are packed; the lane strip is an argument."""

    lanes: int
    band: bool  # rows are packed to a band
    pack: RowTile
    in_vectors: int = 1  # vectors of sums per pixel of an input block
    out_vectors: int = 1  # vectors of sums per pixel of an output block
    epilogue_rows: int = 1  # rows of the epilogue's table per vector of sums
    filled: bool = False  # padding is `fill`, not zero


def _same(tile, args, worker):
    return args.zeros


def _fill(tile, args, worker):
    target = args.zeros + worker * args.zeros_step
    for at in range(0, args.zeros_step, 4 * tile.lanes):
        fill_vector(tile, target + at, args.fill)
    return target


@specialise_on_tile(lambda tile: _fill if tile.filled else _same)
def _padding(tile, args, worker):
    """Address of a window row of padding."""


@inline
def _pack_band(tile, args, image, block, first_row, rows, worker):
    """Pack input rows first_row … first_row+rows-1 of a channel block, padding included, to the worker's band."""
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
def _strip(tile, args, x, y, w, bias, zeros, row):
    """Compute the row of tiles at output row `row`.

    `x` and `y` are the addresses of input pixel (0, -left padding) and of output pixel (0, 0).
    """
    source_row = row * args.stride_h - args.pad_top
    call_lane_strip(
        args.strip,
        x=x + source_row * args.x_line,
        xline=args.x_line,
        row=source_row,
        height=args.in_height,
        width=args.in_width,
        pad_left=args.pad_left,
        zeros=zeros,
        kernel_rows=args.kernel_rows,
        w=w,
        y=y + row * args.y_line,
        yline=args.y_line,
        bias=bias,
        residual=args.residual - args.y,
        rows=args.tile_height,
        tiles=args.column_tiles,
        high=args.width - args.tile_width,
    )


@kernel(
    "strip tile_height tile_width x y w bias residual zeros weight_bytes kernel_rows "
    "channels batch blocks block_step row_blocks row_step row_tiles column_tiles "
    "height width in_height in_width stride_h stride_w pad_top pad_left pad_bytes reach x_image x_line y_image "
    "y_line y_vector band band_step band_width inside x_block x_cb x_c x_h x_w fill zeros_step"
)
def lanewise(tile, worker, before, part, parts, args):
    """y = epilogue(depthwise or grouped convolution of x and w), blocked output; see the module."""
    rows = args.tile_height
    pixel = 4 * tile.lanes
    zeros = _padding(tile, args, worker)
    units = args.batch * args.blocks * args.row_blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        block = unit // args.block_step % args.blocks
        row_block = unit // args.row_step % args.row_blocks
        image = unit // (args.blocks * args.row_blocks)
        row_tiles = args.row_tiles * row_block // args.row_blocks
        next_row_tiles = args.row_tiles * (row_block + 1) // args.row_blocks
        y = args.y + image * args.y_image + block // tile.out_vectors * args.y_vector
        y += block % tile.out_vectors * (pixel // tile.out_vectors)
        w = args.w + block * args.weight_bytes
        bias = args.bias + block * pixel * tile.epilogue_rows
        if tile.band:
            first = min(row_tiles * rows, args.height - rows)
            last = min(next_row_tiles * rows, args.height)
            source_row = first * args.stride_h - args.pad_top
            packed = _pack_band(
                tile, args, image, block, source_row, (last - first - 1) * args.stride_h + args.reach, worker
            )
            x = packed - source_row * args.x_line
        else:
            x = args.x + image * args.x_image + block // tile.in_vectors * args.x_cb - args.pad_bytes
            x += block % tile.in_vectors * (pixel // tile.in_vectors)
        for row_tile in range(row_tiles, next_row_tiles):
            _strip(tile, args, x, y, w, bias, zeros, min(row_tile * rows, args.height - rows))
