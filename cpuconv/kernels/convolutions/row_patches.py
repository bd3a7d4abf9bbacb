"""First layers of any element types: the pixels under a kernel row are contiguous, so that few channels fill groups.

An image row is copied to a line of pixels. For each output column, the pixels under a kernel row are copied from the
line, and padded with zeros to a fixed size (`piece`). Pixels of a line fill whole 32-bit groups; int8 pixels are
contiguous: elements of the next pixel in a group are multiplied by zero weights, and every int8 is a valid number.
These rows are the band of a block of output rows. A segment of the GEMM tile is one kernel row. Band rows of one
kernel row are adjacent for consecutive output rows (with a stride: in each phase), so that the output of a block is one
row.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.copies.rows import RowTile, copy_bytes
from cpuconv.kernels.emit.channels import copy_kept, spread_pixels, zip_planes
from cpuconv.kernels.emit.intrinsics import copy_element, copy_vector, fill_vector, zero_element
from cpuconv.kernels.products.gemm import call_gemm_strip
from cpuconv.kernels.products.matrix_strip import load_configuration, release_tiles
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel

PLANES, ADJACENT, WHOLE, APART = range(4)
"""Element order of the input: contiguous pixels of each channel; contiguous pixels with few channels, or with a
vector of channels; any other."""


@dataclass(frozen=True)
class RowPatchTile:
    """How bands are made; the GEMM micro-kernel is an argument.

    Attributes
    ----------
    lanes : int
    bytes : int
        Size of an element, in bytes.
    source : int
        PLANES, ADJACENT, WHOLE or APART.
    channels, given, pixel : int
        Elements of a pixel: its channels, its stride in the input (ADJACENT), and its stride in a line.
    run : int
        32-bit groups of the pixels under a kernel row, where they are contiguous in a line; 0: dilated.
    piece : int
        32-bit groups of a kernel row in a band.
    vectors_per_pixel : int
        Vectors of sums per pixel of an output block.
    matrix : bool
        The micro-kernel uses AMX tile registers, which a thread configures.
    """

    lanes: int
    bytes: int
    source: int
    channels: int
    given: int
    pixel: int
    run: int
    piece: int
    vectors_per_pixel: int
    matrix: bool

    @property
    def words(self) -> RowTile:
        """Parameters of copies of bytes."""
        return RowTile(self.lanes, 0)


@inline
def _fill(tile, target, end, word):
    """Fill with a 32-bit word from `target` to `end`, and less than a vector beyond."""
    while target < end:
        fill_vector(tile, target, word)
        target += 4 * tile.lanes


@inline
def _by_element(tile, args, source, target, first, last):
    for i in range(first, last):
        for channel in range(tile.channels):
            start = source + channel // args.x_block * args.x_cb + channel % args.x_block * args.x_c + i * args.x_w
            copy_element(tile, start, target + (i * tile.pixel + channel) * tile.bytes)
        for channel in range(tile.channels, tile.pixel):
            zero_element(tile, target + (i * tile.pixel + channel) * tile.bytes)


def _apart(tile, args, source, target, width):
    _by_element(tile, args, source, target, 0, width)


def _planes(tile, args, source, target, width):
    if width < tile.lanes:
        _by_element(tile, args, source, target, 0, width)
        return
    for i in range(0, width, tile.lanes):
        at = min(i, width - tile.lanes)  # the last pixels overlap the previous ones
        zip_planes(tile, source + at * tile.bytes, args.x_cb, target + at * tile.pixel * tile.bytes)


def _beside(tile, args, source, target, width):
    if width < tile.lanes:
        _by_element(tile, args, source, target, 0, width)
        return
    for i in range(0, width, tile.lanes):
        at = min(i, width - tile.lanes)
        spread_pixels(tile, source + at * args.x_w, target + at * tile.pixel * tile.bytes)


def _whole(tile, args, source, target, width):
    for i in range(width):  # lanes beyond a pixel's channels are overwritten by the next pixel
        copy_vector(tile, source + i * args.x_w, target + i * tile.pixel * tile.bytes)


@specialise_on_tile(lambda tile: {PLANES: _planes, ADJACENT: _beside, WHOLE: _whole, APART: _apart}[tile.source])
def _line(tile, args, source, target, width):
    """Copy `width` pixels of an image row to a line."""


def _pieces_of_runs(tile, args, line, target):
    step = args.stride_w * tile.pixel * tile.bytes
    for column in range(args.out_width):
        copy_kept(tile, line + column * step, target + column * tile.piece * 4)


def _pieces_of_taps(tile, args, line, target):
    size = tile.pixel * tile.bytes
    for column in range(args.out_width):
        to = target + column * tile.piece * 4
        _fill(tile, to, to + tile.piece * 4, 0)
        for s in range(args.kernel_w):
            source = line + (column * args.stride_w + s * args.dilation_w) * size
            copy_bytes(tile.words, source, to + s * size, size)


@specialise_on_tile(lambda tile: _pieces_of_runs if tile.run else _pieces_of_taps)
def _pieces(tile, args, line, target):
    """Copy the pixels under a kernel row for each output column."""


@inline
def _pack_band(tile, args, image, first_row, rows, line, band):
    """Pack input rows first_row … first_row+rows-1, padding included, to a band."""
    size = tile.pixel * tile.bytes
    start = line + args.pad_left * size
    for row in range(rows):
        source_row = first_row + row
        target = band + (row % args.stride_h) * args.phase + row // args.stride_h * args.band_line
        if source_row < 0 or source_row >= args.in_height:
            _fill(tile, line, line + args.line_width * size, args.fill)
        else:
            _fill(tile, line, start, args.fill)
            _line(tile, args, args.x + image * args.x_image + source_row * args.x_h, start, args.inside)
            _fill(tile, start + args.inside * size, line + args.line_width * size, args.fill)
        _pieces(tile, args, line, target)


@kernel(
    "gemm gemm_last tile_vectors tile_columns x y w bias bias_vector residual fill configuration table segments tails "
    "panel_bytes panels batch row_blocks height out_width line line_step line_width inside band band_step band_line "
    "phase reach kernel_w stride_h stride_w dilation_w pad_top pad_left in_height x_image x_block x_cb x_c x_h x_w "
    "y_image y_vector y_line"
)
def row_patches(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), blocked output with contiguous rows; see the module."""
    if tile.matrix:
        load_configuration(tile, args.configuration)
    units = args.batch * args.row_blocks
    band = args.band + worker * args.band_step
    line = args.line + worker * args.line_step
    for unit in range(units * part // parts, units * (part + 1) // parts):
        row_block = unit % args.row_blocks
        image = unit // args.row_blocks
        first = args.height * row_block // args.row_blocks
        last = args.height * (row_block + 1) // args.row_blocks
        rows = (last - first - 1) * args.stride_h + args.reach
        _pack_band(tile, args, image, first * args.stride_h - args.pad_top, rows, line, band)
        pixels = (last - first) * args.out_width
        y = args.y + image * args.y_image + first * args.y_line
        for panel in range(args.panels):
            vector = panel * args.tile_vectors
            place = vector // tile.vectors_per_pixel * args.y_vector + vector % tile.vectors_per_pixel * (
                4 * tile.lanes // tile.vectors_per_pixel
            )
            call_gemm_strip(
                args.gemm_last if panel == args.panels - 1 else args.gemm,
                x=band,
                xrow=0,
                table=args.table,
                segments=args.segments,
                kstep=0,
                w=args.w + panel * args.panel_bytes,
                y=y + place,
                yrow=0,
                yvec=args.y_vector,
                bias=args.bias + vector * args.bias_vector,
                residual=args.residual - args.y,
                suspended_sums=0,
                prefetch_address=0,
                turn=0,
                fetch_step=0,
                shares=1,
                tails=args.tails,
                valid=0,
                first=0,
                last=(pixels + args.tile_columns - 1) // args.tile_columns,
                width=pixels,
            )
    if tile.matrix:
        release_tiles(tile)
