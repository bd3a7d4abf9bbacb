"""im2col fused with GEMM: what a block of output pixels reads is packed into the worker's workspace and used.

The work is cut into units (image, group, block of pixels, chunk of weight panels); pixels are counted over the whole
output plane. `im2col` packs columns of float32 (`packing/columns.py`); `patches` packs a patch per pixel, of any
element types (`packing/patches.py`). The packed pixels of a block stay in L2 while all weight panels use them.

Sums are stored directly where the group starts at a channel block of the output. Otherwise they are stored to a buffer
of channel blocks, of the output's elements, and copied to any view. A residual is first copied to such a buffer.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.copies.rows import RowTile, channel_offset, pack_row, unpack_row
from cpuconv.kernels.emit.intrinsics import zero_element
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.packing.columns import IN_PLACE, LINES, VECTORS, pack_columns, zero_columns
from cpuconv.kernels.packing.patches import pack_patches
from cpuconv.kernels.products.gemm import call_gemm_strip
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel


@dataclass(frozen=True)
class PixelBlockTile:
    """How pixels are packed and how sums are copied to the output; the GEMM micro-kernel is an argument.

    Attributes
    ----------
    lanes : int
    load : int
        IN_PLACE, LINES or VECTORS: columns; ADJACENT or APART: patches.
    residual : bool
    direct : bool
        Sums are stored to the output directly.
    rows, extra : RowTile
        Otherwise: loops that copy a buffer to the output, and the residual to a buffer.
    taps : RowTile
        Patches: elements of the input.
    vectors_per_pixel : int
        Vectors of sums per vector of the output's elements.
    whole : bool
        The loops of the output write whole channel blocks.
    """

    lanes: int
    load: int
    residual: bool
    direct: bool
    rows: RowTile
    extra: RowTile
    taps: RowTile | None = None
    vectors_per_pixel: int = 1
    whole: bool = False

    @property
    def columns(self) -> bool:
        """Whether pixels are columns, not patches."""
        return self.load in (IN_PLACE, LINES, VECTORS)


# --- buffers of sums ------------------------------------------------------------------------------------------------


@inline
def _pack_residual(tile, args, image, channel, valid, buffer, first, last):
    """Copy pixels first … last-1 of channels channel … channel+valid-1 of the residual to a buffer.

    Each output row is a run of pixels in the view.
    """
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
def _unpack_sums(tile, args, y, channel, valid, buffer, first, last):
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
def _zero_tail(tile, args, y, first, last):
    """Zero the padding channels of the output's last block, in these pixels."""
    for channel in range(args.channels, args.stored):
        lane = y + channel_offset(channel, args.y_block, args.y_cb, args.y_c)
        for pixel in range(first, last):
            row = pixel // args.y_width
            zero_element(tile.rows, lane + row * args.y_h + (pixel - row * args.y_width) * args.y_w)


@inline
def _buffer(tile, args, start, j):
    """Address of vector `j` of a panel in the buffers from `start` on."""
    return start + (j if tile.vectors_per_pixel == 1 else j // tile.vectors_per_pixel) * args.vector_step


# --- what differs between columns and patches -----------------------------------------------------------------------


def _nothing(tile, args, columns):
    pass


def _zero_rows(tile, args, columns):
    padding = columns + args.depth * args.pitch
    zero_columns(tile, padding, args.pitch, args.depth_padded - args.depth, args.block_pixels)


@specialise_on_tile(lambda tile: _zero_rows if tile.columns else _nothing)
def _begin(tile, args, columns):
    """Zero the column rows that pad the reduction."""


@specialise_on_tile(lambda tile: pack_columns if tile.columns else pack_patches)
def _pack(tile, args, x, group, target, first, count):
    """Pack pixels first … first+count-1 of a group."""


def _between_columns(tile, args):
    return 4


def _between_patches(tile, args):
    return args.patch


@specialise_on_tile(lambda tile: _between_columns if tile.columns else _between_patches)
def _pixel_step(tile, args):
    """Byte stride of packed pixels."""


@inline
def _present(tile, args, vector):
    """Count the output vectors of the panel that begins with `vector`."""
    return min(args.tile_vectors, (args.group_kernels - vector * tile.lanes + tile.lanes - 1) // tile.lanes)


def _bias_of_channel(tile, args, bias, channel):
    return bias + channel * 4


def _bias_of_vector(tile, args, bias, channel):
    group = channel // args.group_kernels
    vector = (channel - group * args.group_kernels) // tile.lanes
    return bias + group * args.bias_group + vector * args.bias_vector


@specialise_on_tile(lambda tile: _bias_of_channel if tile.columns else _bias_of_vector)
def _bias(tile, args, bias, channel):
    """Address of the epilogue's rows from `channel` on, the first one of a vector."""


# --- the driver -----------------------------------------------------------------------------------------------------


@inline
def _pixel_blocks(tile, worker, before, part, parts, args):
    lanes = tile.lanes
    pixel_bytes = 4 * lanes
    each = tile.vectors_per_pixel
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
        if tile.load == IN_PLACE:
            columns = x + group * args.group_channels * args.x_cb + first * 4
        elif packed != place:
            if packed < 0:
                _begin(tile, args, columns)
            packed = place
            _pack(tile, args, x, group, columns, first, last - first)
        for panel in range(args.panels * chunk // args.chunks, args.panels * (chunk + 1) // args.chunks):
            vector = min(panel * args.tile_vectors, args.vectors - args.tile_vectors)
            channel = group * args.group_kernels + vector * lanes
            to = sums
            shift = extra - sums
            if tile.direct:
                to = y + (channel // lanes) * args.y_cb + first * pixel_bytes
                shift = args.residual - args.y  # the residual has the strides of y
            elif tile.residual:
                for j in range(0, args.tile_vectors if tile.columns else _present(tile, args, vector), each):
                    valid = min(
                        lanes if tile.columns else min(each, args.tile_vectors - j) * lanes,
                        args.group_kernels - (vector + j) * lanes,
                    )
                    to_extra = _buffer(tile, args, extra, j)
                    _pack_residual(tile, args, image, channel + j * lanes, valid, to_extra, first, last)
            w = args.w + (group * args.panels + panel) * args.panel_bytes
            call_gemm_strip(
                args.gemm_last if panel == args.panels - 1 else args.gemm,
                x=columns - first * _pixel_step(tile, args),
                xrow=0,
                table=args.table,
                segments=args.segments,
                kstep=args.pitch,
                w=w,
                y=to - first * pixel_bytes,
                yrow=0,
                yvec=args.vector_step,
                bias=_bias(tile, args, args.bias, channel),
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
                for j in range(0, args.tile_vectors if tile.columns else _present(tile, args, vector), each):
                    valid = min(
                        lanes if tile.columns else min(each, args.tile_vectors - j) * lanes,
                        args.group_kernels - (vector + j) * lanes,
                    )
                    _unpack_sums(tile, args, y, channel + j * lanes, valid, _buffer(tile, args, to, j), first, last)
        if not tile.whole and group == args.groups - 1 and chunk == args.chunks - 1:
            _zero_tail(tile, args, y, first, last)


@kernel(
    "gemm gemm_last tile_vectors tile_columns x y w bias residual table segments tails panel_bytes panels vectors "
    "groups chunks blocks batch tiles pixels block_pixels columns columns_step pitch depth depth_padded sums extra "
    "sums_step vector_step channels stored group_kernels group_channels kernel_h kernel_w stride_h stride_w "
    "dilation_h dilation_w pad_top pad_left in_height in_width out_width x_span x_image x_block x_cb x_c x_h x_w "
    "y_image y_width y_block y_cb y_c y_h y_w r_image r_block r_cb r_c r_h r_w"
)
def im2col(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), float32, any views, by columns."""
    _pixel_blocks(tile, worker, before, part, parts, args)


@kernel(
    "gemm gemm_last tile_vectors tile_columns x y w bias bias_vector bias_group residual fill table segments "
    "panel_bytes panels vectors groups chunks blocks batch tiles pixels columns columns_step pitch patch spare sums "
    "extra sums_step vector_step channels stored group_kernels group_channels kernel_h kernel_w stride_h stride_w "
    "dilation_h dilation_w pad_top pad_left in_height in_width out_width x_image x_block x_cb x_c x_h x_w y_image "
    "y_width y_block y_cb y_c y_h y_w r_image r_block r_cb r_c r_h r_w tails"
)
def patches(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), any element types and views, by patches."""
    _pixel_blocks(tile, worker, before, part, parts, args)
