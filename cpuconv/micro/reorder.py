"""Reorder: an activation from any view to any other.

The work is cut into units (image, channel group of `lanes`, row, chunk of columns); a part is a contiguous range
of them. The form in between is a blocked row: where the target (or the source) is one, rows are packed straight into
it (or unpacked straight from it); else a chunk passes through a buffer of the worker that stays in L1.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpuconv.micro.intrinsics import zero_float
from cpuconv.micro.rows import RowTile, channel_offset, copy_line, pack_row, unpack_row, zero_pixels
from cpuconv.runtime.kernel import kernel

PACK, UNPACK, BOTH, LINES = range(4)
"""Into blocks; from blocks; through a buffer; channel rows to channel rows."""


@dataclass(frozen=True)
class ReorderTile:
    """The loops of either side, and which of them are needed."""

    lanes: int
    source: RowTile
    target: RowTile
    mode: int


@kernel(
    "x y buffer buffer_step units x_image y_image channels stored groups group_step rows row_step chunks chunk_step "
    "chunk width x_block x_cb x_c x_h x_w y_block y_cb y_c y_h y_w"
)
def reorder(tile, worker, before, part, parts, args):
    """y = x in another layout; channels from `channels` to `stored` (the end of y's last block) are zero."""
    lanes = tile.lanes
    buffer = args.buffer + worker * args.buffer_step
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        group = unit // args.group_step % args.groups
        row = unit // args.row_step % args.rows
        column = unit // args.chunk_step % args.chunks * args.chunk
        image = unit // (args.groups * args.rows * args.chunks)
        width = min(args.chunk, args.width - column)
        first = group * lanes
        valid = min(lanes, args.channels - first)
        x = args.x + image * args.x_image + row * args.x_h + column * args.x_w
        y = args.y + image * args.y_image + row * args.y_h + column * args.y_w
        if tile.mode == 3:
            for channel in range(first, first + valid):
                source = x + channel_offset(channel, args.x_block, args.x_cb, args.x_c)
                copy_line(tile, source, 4, y + channel_offset(channel, args.y_block, args.y_cb, args.y_c), width)
            continue
        between = buffer
        if tile.mode == 0:
            between = y + channel_offset(first, args.y_block, args.y_cb, args.y_c)
        elif tile.mode == 1:
            between = x + channel_offset(first, args.x_block, args.x_cb, args.x_c)
        if tile.mode != 1:
            if valid > 0:
                pack_row(tile.source, x, first, valid, args.x_block, args.x_cb, args.x_c, args.x_w, between, width)
            else:
                zero_pixels(tile, between, width)
        if tile.mode != 0:
            present = max(1, valid)
            unpack_row(tile.target, between, first, present, args.y_block, args.y_cb, args.y_c, args.y_w, y, width)
            if tile.target.kind == 3:  # ANY: the loop above leaves tail channels alone
                for channel in range(first + present, min(first + lanes, args.stored)):
                    lane = y + channel_offset(channel, args.y_block, args.y_cb, args.y_c)
                    for i in range(width):
                        zero_float(tile, lane + i * args.y_w)
