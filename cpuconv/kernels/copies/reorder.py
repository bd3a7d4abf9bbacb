"""Reorder an activation from any view to any other.

The work is cut into units (image, vector of channels, row, chunk of columns); a part is a contiguous range of units.
The intermediate form is a row of vectors, one per pixel. Where the target has contiguous channels, rows are packed
directly into it; where the source has, they are unpacked directly from it. Otherwise, and where a vector would reach
past the last channels, pixels pass through a buffer of the worker that stays in L1.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.copies.rows import (
    RowTile,
    channel_offset,
    pack_vectors,
    unpack_vectors,
    zero_vectors,
)
from cpuconv.kernels.emit.intrinsics import zero_element
from cpuconv.runtime.kernel import inline, kernel

PACK, UNPACK, BOTH = range(3)
"""Modes: pack to the target; unpack from the source; through a buffer."""


@dataclass(frozen=True)
class ReorderTile:
    """Tile of the reorder: loops of source and target, mode, and whether partial vectors bypass the buffer too."""

    lanes: int
    source: RowTile
    target: RowTile
    mode: int
    parts: bool

    @property
    def bytes(self) -> int:
        """Bytes per element."""
        return self.target.bytes

    @property
    def group(self) -> int:
        """Channels per vector."""
        return self.target.group


@inline
def _pack(tile, args, x, first, valid, target, step, width):
    """Pack pixels of the source to vectors."""
    if valid > 0:
        block, cb, c, w = args.x_block, args.x_cb, args.x_c, args.x_w
        pack_vectors(tile.source, x, first, valid, block, cb, c, w, target, step, width)
    else:
        zero_vectors(tile, target, step, width)


@inline
def _unpack(tile, args, source, step, first, valid, y, width):
    """Unpack vectors to pixels of the target."""
    unpack_vectors(tile.target, source, step, first, valid, args.y_block, args.y_cb, args.y_c, args.y_w, y, width)
    if tile.target.kind == 3:  # ANY: the loop above does not write tail channels
        for channel in range(first + valid, min(first + tile.group, args.stored)):
            lane = y + channel_offset(channel, args.y_block, args.y_cb, args.y_c)
            for i in range(width):
                zero_element(tile, lane + i * args.y_w)


@kernel(
    "x y buffer buffer_step units x_image y_image channels stored groups rows chunks by_pixel chunk spare width "
    "x_block x_cb x_c x_h x_w y_block y_cb y_c y_h y_w"
)
def reorder(tile, worker, before, part, parts, args):
    """y = x in another layout; channels from `channels` to `stored` (the end of y's last block) are zero.

    Units are numbered with the chunk fastest, then row, group and image; with `by_pixel`, group, chunk, row. The last
    `spare` pixels of a chunk are those whose vectors would reach past the chunk.
    """
    lanes = tile.lanes
    buffer = args.buffer + worker * args.buffer_step
    unit = args.units * part // parts
    end = args.units * (part + 1) // parts
    group_step, chunk_step, row_step = args.chunks * args.rows, 1, args.chunks
    if args.by_pixel:
        group_step, chunk_step, row_step = 1, args.groups, args.groups * args.chunks
    group = unit // group_step % args.groups
    row = unit // row_step % args.rows
    chunk = unit // chunk_step % args.chunks
    image = unit // (args.groups * args.rows * args.chunks)
    while unit < end:
        column = chunk * args.chunk
        width = min(args.chunk, args.width - column)
        first = group * tile.group
        valid = min(tile.group, args.channels - first)
        x = args.x + image * args.x_image + row * args.x_h + column * args.x_w
        y = args.y + image * args.y_image + row * args.y_h + column * args.y_w
        plain = width  # pixels that bypass the buffer
        if tile.mode == 2:
            plain = 0
        elif valid < tile.group and not tile.parts:
            plain = max(0, width - args.spare)
        done = 0
        while done < width:
            straight = done < plain
            count = plain if straight else width - done
            between, step = buffer, 4 * lanes
            if tile.mode == 0 and straight:
                between, step = y + channel_offset(first, args.y_block, args.y_cb, args.y_c), args.y_w
            elif tile.mode == 1 and straight:
                between, step = x + channel_offset(first, args.x_block, args.x_cb, args.x_c), args.x_w
            if tile.mode != 1 or not straight:
                _pack(tile, args, x, first, valid, between, step, count)
            if tile.mode != 0 or not straight:
                _unpack(tile, args, between, step, first, max(1, valid), y, count)
            x += count * args.x_w
            y += count * args.y_w
            done += count
        unit += 1
        if args.by_pixel:
            group += 1
            if group < args.groups:
                continue
            group = 0
        chunk += 1
        if chunk < args.chunks:
            continue
        chunk = 0
        row += 1
        if row < args.rows:
            continue
        row = 0
        if not args.by_pixel:
            group += 1
            if group < args.groups:
                continue
            group = 0
        image += 1
