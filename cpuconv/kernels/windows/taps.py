"""Driver of int8 depthwise convolution in channel blocks by tap tiles.

A unit is a channel block of some rows of tiles of an image; a part is a contiguous range of units. A tile computes a
piece of the block's channels at a time. Rows and columns outside of the input are read from a row that each worker
fills with the zero point. With 8-bit outputs, pieces without channels are set to zero, too.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.emit.intrinsics import fill_vector, word
from cpuconv.kernels.windows.tap_tile import call_tap_strip
from cpuconv.runtime.kernel import inline, kernel


@dataclass(frozen=True)
class TapsTile:
    """Lanes per vector; vectors per piece; pieces per pixel of an input block; vectors per pixel of an output block."""

    lanes: int
    vectors: int
    pieces: int
    out_vectors: int


@inline
def _strip(tile, args, strip, x, y, w, bias, zeros, first_row, last_row):
    """Compute some rows of tiles, by the micro-kernel whose address is stored at `strip`.

    `x` and `y` are the addresses of input pixel (-top padding, -left padding) and of output pixel (0, 0).
    """
    call_tap_strip(
        word(tile, strip, 0),
        x=x,
        xline=args.x_line,
        top=-args.pad_top,
        height=args.in_height,
        width=args.in_width,
        pad_left=args.pad_left,
        zeros=zeros,
        w=w,
        y=y,
        yline=args.y_line,
        yvector=args.y_vector,
        bias=bias,
        residual=args.residual - args.y,
        first_row=first_row,
        last_row=last_row,
        bottom=args.height - args.tile_height,
        first=0,
        last=args.column_tiles,
        high=args.width - args.tile_width,
    )


@kernel(
    "strips full present tile_height tile_width x y w bias residual zeros zeros_step fill "
    "weight_bytes bias_bytes batch blocks block_step row_tiles row_blocks row_step column_tiles height width "
    "in_height in_width pad_top pad_left x_image x_block x_line y_image y_vector y_line"
)
def taps(tile, worker, before, part, parts, args):
    """y = epilogue(depthwise convolution of x and w), blocked output; see the module.

    `strips` is the address of the addresses of three micro-kernels: for full pieces, for the last one with channels,
    and for empty ones. `full` pieces are full, `present` have channels.
    """
    pixel = 4 * tile.lanes
    piece_bytes = pixel // tile.pieces
    zeros = args.zeros + worker * args.zeros_step
    for at in range(0, args.zeros_step, pixel):
        fill_vector(tile, zeros + at, args.fill)
    units = args.batch * args.blocks * args.row_blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        block = unit // args.block_step % args.blocks
        row_block = unit // args.row_step % args.row_blocks
        image = unit // (args.blocks * args.row_blocks)
        first_row = args.row_tiles * row_block // args.row_blocks
        last_row = args.row_tiles * (row_block + 1) // args.row_blocks
        x = args.x + image * args.x_image + block * args.x_block - args.pad_left * pixel
        x -= args.pad_top * args.x_line
        for piece in range(block * tile.pieces, (block + 1) * tile.pieces):
            kind = 0 if piece < args.full else 1 if piece < args.present else 2
            if kind == 2 and tile.out_vectors == 1:
                continue
            strip = args.strips + 8 * kind
            vector = piece * tile.vectors
            y = args.y + image * args.y_image + vector // tile.out_vectors * args.y_vector
            y += vector % tile.out_vectors * tile.lanes
            w = args.w + piece * args.weight_bytes
            bias = args.bias + piece * args.bias_bytes
            _strip(tile, args, strip, x, y, w, bias, zeros, first_row, last_row)
            x += piece_bytes
