"""Driver of convolution to few output channels by tiles that reduce sums across lanes; output in planes.

The work is cut into units (image, run of output rows, tile of output channels); a part is a contiguous range of units.
A row is cut into tiles of as many pixels as a vector has lanes; the last overlaps the previous one. Tiles whose window
is inside the input read it in place. Other windows are first copied to the worker's workspace, with the zero point as
padding.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.convolutions.folded_tile import call_folded_strip
from cpuconv.kernels.copies.rows import copy_bytes
from cpuconv.kernels.emit.intrinsics import copy_vector, fill_vector, word
from cpuconv.runtime.kernel import inline, kernel


@dataclass(frozen=True)
class FoldedCall:
    """Lanes per vector; the micro-kernels are arguments."""

    lanes: int


@inline
def _copy_window(tile, args, x, row, column, to):
    """Copy the window that begins at an input row and column, either perhaps outside, for all channel blocks."""
    pixel = 4 * tile.lanes
    for block in range(args.blocks):
        source = x + word(tile, args.starts, block)
        for tap in range(args.kernel_h):
            at_row = row + tap * args.dilation_h
            line = source + at_row * args.x_h
            for i in range(args.window):
                at = column + i
                if not (0 <= at_row < args.in_height and 0 <= at < args.in_width):
                    fill_vector(tile, to, args.fill)
                elif block < args.blocks - 1:
                    copy_vector(tile, line + at * args.x_w, to)
                else:
                    copy_bytes(tile, line + at * args.x_w, to, args.last_bytes)
                to += pixel


@kernel(
    "strip strip_edge x y w bias residual table table_edge segments starts blocks last_bytes window edge edge_step "
    "fill tiles tile_pixels tile_channels tile_bytes batch height width runs row_tiles inner inner_end inner_rows "
    "inner_rows_end kernel_h stride_h stride_w dilation_h pad_top pad_left in_height in_width x_image x_h x_w y_image "
    "y_plane y_line y_pixel"
)
def folded(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), output in planes; see the module.

    Tiles inner … inner_end-1 of a row have no padding left or right, rows inner_rows … inner_rows_end-1 none above or
    below.
    """
    edge = args.edge + worker * args.edge_step
    units = args.batch * args.tiles * args.runs
    for unit in range(units * part // parts, units * (part + 1) // parts):
        run = unit % args.runs
        place = unit // args.runs
        number = place % args.tiles
        image = place // args.tiles
        w = args.w + number * args.tile_bytes
        bias = args.bias + 4 * number * args.tile_channels
        x = args.x + image * args.x_image
        y = args.y + image * args.y_image + number * args.tile_channels * args.y_plane
        # a run is a range of rows, or of tiles where there is one row
        row_runs = 1 if args.height == 1 else args.runs
        tile_runs = args.runs // row_runs
        first_row = args.height * (run // tile_runs) // row_runs
        last_row = args.height * (run // tile_runs + 1) // row_runs
        first_tile = args.row_tiles * (run % tile_runs) // tile_runs
        last_tile = args.row_tiles * (run % tile_runs + 1) // tile_runs
        high = args.width - args.tile_pixels
        for row in range(first_row, last_row):
            source_row = row * args.stride_h - args.pad_top
            line = y + row * args.y_line
            inner = first_tile
            inner_end = first_tile
            if args.inner_rows <= row < args.inner_rows_end:
                inner = max(first_tile, args.inner)
                inner_end = max(inner, min(last_tile, args.inner_end))
            if inner < inner_end:
                call_folded_strip(
                    args.strip,
                    x=x + source_row * args.x_h - args.pad_left * args.x_w,
                    table=args.table,
                    segments=args.segments,
                    w=w,
                    y=line,
                    yplane=args.y_plane,
                    bias=bias,
                    residual=args.residual - args.y,
                    first=inner,
                    last=inner_end,
                    high=high,
                )
            for at in range(first_tile, last_tile):
                if inner <= at < inner_end:
                    continue
                pixel = min(at * args.tile_pixels, high)
                _copy_window(tile, args, x, source_row, pixel * args.stride_w - args.pad_left, edge)
                call_folded_strip(
                    args.strip_edge,
                    x=edge,
                    table=args.table_edge,
                    segments=args.segments,
                    w=w,
                    y=line + pixel * args.y_pixel,
                    yplane=args.y_plane,
                    bias=bias,
                    residual=args.residual - args.y,
                    first=0,
                    last=1,
                    high=0,
                )
