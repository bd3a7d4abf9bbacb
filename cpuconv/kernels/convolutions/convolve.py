"""Convolution by GEMM tiles over an image or over packed bands of it: driver of pointwise, direct and first layers.

The work is cut into units (image, block of tile rows, block of tile columns, chunk of weight panels); a part is a
contiguous range of units. Within a unit, a weight panel (v vectors of output channels) stays in L1 while the pixels of
the block are read. Tiles have one exact size: the last tile of a row, of a column and of the panels overlaps the
previous tile instead of being padded.

A band is the input rows of one block with their padding, copied to the worker's workspace: in channel blocks (from any
layout) or as channel rows (planar). The copy stays in L2, and inner loops have no border cases. Where the input is in
channel blocks, only the columns under border tiles are copied; the tiles between read the input in place.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.copies.rows import RowTile, channel_offset, copy_line, pack_row, zero_line
from cpuconv.kernels.emit.intrinsics import fill_vector, word
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.products.gemm import call_gemm_strip
from cpuconv.kernels.products.matrix_strip import load_configuration, release_tiles
from cpuconv.runtime.kernel import inline, kernel

NO_BAND, BLOCKED_BAND, PLANAR_BAND = range(3)


@dataclass(frozen=True)
class ConvolveTile:
    """How bands are packed; the GEMM micro-kernel and the other parameters of a problem are arguments."""

    lanes: int
    pack: RowTile
    matrix: bool = False  # the micro-kernel uses AMX tile registers, which a thread configures


@inline
def _pad(tile, args, target, count):
    """Write `count` pixels of padding."""
    for i in range(count):
        fill_vector(tile, target + i * 4 * tile.lanes, args.fill)


@inline
def _pack_part(tile, args, source, channel, to, from_, until):
    """Pack columns from_ … until-1 of a band row at `to`, from the image row at `source`; pad outside of the image."""
    blocked = args.band_kind == BLOCKED_BAND
    step = tile.lanes if blocked else 1
    pixel = 4 * step
    first = min(max(from_, args.pad_left), until)
    last = max(first, min(until, args.pad_left + args.inside))
    start = to + first * pixel
    if blocked:
        _pad(tile, args, to + from_ * pixel, first - from_)
        _pad(tile, args, to + last * pixel, until - last)
        source += (first - args.pad_left) * args.x_w
        valid = min(step, args.channels - channel)
        pack_row(tile.pack, source, channel, valid, args.x_block, args.x_cb, args.x_c, args.x_w, start, last - first)
    else:
        zero_line(tile, to + from_ * pixel, first - from_)
        zero_line(tile, to + last * pixel, until - last)
        source += channel_offset(channel, args.x_block, args.x_cb, args.x_c) + (first - args.pad_left) * args.x_w
        copy_line(tile, source, args.x_w, start, last - first)


@inline
def _pack_band(tile, args, image, first_row, rows, left, right, band):
    """Copy input rows first_row … first_row+rows-1 (padding included) of all channels to the band.

    Of each row, the columns 0 … left-1 and right … band_width-1 are copied.
    """
    blocked = args.band_kind == BLOCKED_BAND
    step = tile.lanes if blocked else 1
    line = args.band_width * 4 * step
    for block in range((args.channels + step - 1) // step):
        for row in range(rows):
            to = band + block * args.band_plane + row * line
            source_row = first_row + row
            if source_row < 0 or source_row >= args.in_height:
                if blocked:
                    _pad(tile, args, to, args.band_width)
                else:
                    zero_line(tile, to, args.band_width)
                continue
            source = args.x + image * args.x_image + source_row * args.x_h
            for side in range(1 + (left < args.band_width)):
                from_ = right if side == 1 else 0
                until = left if side == 0 else args.band_width
                _pack_part(tile, args, source, block * step, to, from_, until)


@inline
def _inside(args, row, segment, segments):
    """Count the leading segments that read padding only, for a tile at `row`, and the segments to compute after them.

    At least one segment remains: sums must be initialised or resumed.
    """
    top = args.pad_top - (row + args.tile_height - 1) * args.stride_h
    bottom = args.in_height + args.pad_top - row * args.stride_h
    first = max(0, (top + args.dilation_h - 1) // args.dilation_h) * args.row_segments
    last = (bottom + args.dilation_h - 1) // args.dilation_h * args.row_segments
    first = max(first - segment, 0)
    last = min(last - segment, segments)
    if first >= last:
        return 0, 1
    return first, last - first


@inline
def _sweep(
    tile,
    args,
    x,
    x_line,
    table,
    x_group,
    y,
    suspended,
    panel,
    part,
    row_tiles,
    next_row_tiles,
    column_tiles,
    next_column_tiles,
):
    """Compute one part of a weight panel over the tiles of a block.

    `x` and `y` are the addresses of output pixel (0, 0).
    """
    if column_tiles >= next_column_tiles:
        return
    count = args.segments
    if args.table_panel > 0:
        table += panel * args.table_panel
        count = word(tile, table, 0)
        table += 8
    segment = count * part // args.parts
    segments = count * (part + 1) // args.parts - segment
    w = args.w + panel * args.panel_bytes + segment * args.segment_bytes
    group = panel // args.panels
    vector = min((panel - group * args.panels) * args.tile_vectors, args.vectors - args.tile_vectors)
    channel = group * args.vectors + vector
    if part < args.parts - 1:
        gemm = args.gemm_middle if part > 0 else args.gemm_first
    else:
        gemm = args.gemm_last if (panel + 1) % args.panels == 0 else args.gemm
    x += group * x_group
    y += channel // args.pixel_vectors * args.y_vector + channel % args.pixel_vectors * (
        4 * tile.lanes // args.pixel_vectors
    )
    for row_tile in range(row_tiles, next_row_tiles):
        row = min(row_tile * args.tile_height, args.height - args.tile_height)
        turn = (row_tile - row_tiles) * args.column_tiles
        skipped = 0
        met = segments
        if args.row_segments > 0:
            skipped, met = _inside(args, row, segment, segments)
        call_gemm_strip(
            gemm,
            x=x + row * x_line,
            xrow=x_line,
            table=table + (segment + skipped) * 8,
            segments=met,
            kstep=args.part_step,
            w=w + skipped * args.segment_bytes,
            y=y + row * args.y_line,
            yrow=args.y_line,
            yvec=args.y_vector,
            bias=args.bias + channel * args.bias_vector,
            residual=args.residual - args.y,
            suspended_sums=suspended + turn * args.suspended_tile,
            prefetch_address=w + segments * args.segment_bytes,
            turn=turn,
            fetch_step=args.fetch_step,
            shares=args.shares,
            tails=args.tails,
            valid=0,
            first=column_tiles,
            last=next_column_tiles,
            width=args.width,
        )


@kernel(
    "gemm gemm_last tile_vectors tile_height x y w bias bias_vector residual table segments panel_bytes panels vectors "
    "groups chunks batch x_image y_image x_group height width x_line y_line y_vector row_tiles column_tiles row_blocks "
    "column_blocks band band_step band_plane band_width channels in_height inside pad_top pad_left "
    "stride_h reach x_block x_cb x_c x_h x_w "
    "inner_tiles inner_tiles_end inner_left inner_right inner_line inner_table inner_group inner_start "
    "configuration fill parts segment_bytes gemm_first gemm_middle suspended suspended_step suspended_tile table_panel "
    "row_segments dilation_h band_kind pixel_vectors fetch_step shares tails part_step"
)
def convolve(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), blocked output; see the module.

    Differences between problems are argument words, read once per unit or panel, so that one specialisation serves all.
    `band_kind`: source of the pixels. `pixel_vectors`: adjacent output vectors of a pixel in a block. `table_panel` is
    not 0 where groups share channel blocks and are merged to one; each panel then has its own segment count and table.
    `row_segments`: segments per kernel row; not 0 where segments that read padding only are skipped.
    """
    if tile.matrix:
        load_configuration(tile, args.configuration)
    units = args.batch * args.row_blocks * args.column_blocks * args.chunks
    all_panels = args.panels * args.groups
    packed = last_unit(units, before, parts) // (args.chunks * args.column_blocks)
    inner = False
    x = args.x
    suspended = args.suspended + worker * args.suspended_step
    for unit in range(units * part // parts, units * (part + 1) // parts):
        chunk = unit % args.chunks
        place = unit // args.chunks
        column_block = place % args.column_blocks
        row_place = place // args.column_blocks
        row_block = row_place % args.row_blocks
        image = row_place // args.row_blocks
        row_tiles = args.row_tiles * row_block // args.row_blocks
        next_row_tiles = args.row_tiles * (row_block + 1) // args.row_blocks
        if args.band_kind == NO_BAND:
            x = args.x + image * args.x_image
        else:
            first = min(row_tiles * args.tile_height, args.height - args.tile_height)
            last = min(next_row_tiles * args.tile_height, args.height)
            rows = (last - first - 1) * args.stride_h + args.reach
            first_row = first * args.stride_h - args.pad_top
            inner = args.inner_tiles < args.inner_tiles_end and first_row >= 0 and first_row + rows <= args.in_height
            left = args.inner_left if inner else args.band_width
            band = args.band + worker * args.band_step
            if packed != row_place:
                packed = row_place
                _pack_band(tile, args, image, first_row, rows, left, args.inner_right, band)
            x = band - first * args.x_line
        column_tiles = args.column_tiles * column_block // args.column_blocks
        next_column_tiles = args.column_tiles * (column_block + 1) // args.column_blocks
        cut = args.inner_tiles if inner else column_tiles
        next_cut = args.inner_tiles_end if inner else column_tiles
        y = args.y + image * args.y_image
        inner_x = args.x + image * args.x_image + args.inner_start
        for panel in range(all_panels * chunk // args.chunks, all_panels * (chunk + 1) // args.chunks):
            for section in range(args.parts):
                for third in range(3):  # in place between two bands, or all from the band
                    from_ = column_tiles if third == 0 else cut if third == 1 else next_cut
                    until = cut if third == 0 else next_cut if third == 1 else next_column_tiles
                    _sweep(
                        tile,
                        args,
                        inner_x if third == 1 else x,
                        args.inner_line if third == 1 else args.x_line,
                        args.inner_table if third == 1 else args.table,
                        args.inner_group if third == 1 else args.x_group,
                        y,
                        suspended,
                        panel,
                        section,
                        row_tiles,
                        next_row_tiles,
                        from_,
                        until,
                    )
    if tile.matrix:
        release_tiles(tile)
