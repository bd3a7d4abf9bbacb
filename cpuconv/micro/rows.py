"""Rows of pixels between any layout and channel blocks of `lanes`: the moves that packing and reorders are made of.

A view is where element (channel, column) of an image row lies: row + (channel // block)·cb + (channel % block)·c +
column·w, in bytes. Its `kind`, chosen from the strides when a plan is bound, picks the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpuconv.micro.choice import choose
from cpuconv.micro.intrinsics import copy_float, copy_vector, zero_float, zero_vector
from cpuconv.micro.moves import copy_valid, gather_blocks, scatter_blocks
from cpuconv.micro.transpose import transpose_block, transpose_from_narrow, transpose_part, transpose_to_narrow
from cpuconv.runtime.kernel import inline

BLOCKED, CHANNELS, ROWS, ANY, FOURS, EIGHTS = range(6)
"""Lanes contiguous in blocks of `lanes` or a multiple; channels contiguous (NHWC); pixels contiguous (NCHW); none of
these; contiguous blocks of 4 or 8 channels, fewer than `lanes`."""

PIECES = {FOURS: 4, EIGHTS: 8}


@dataclass(frozen=True)
class RowTile:
    """Which loop moves a row."""

    lanes: int
    kind: int

    @property
    def piece(self) -> int:
        """Channels of a block narrower than a vector."""
        return min(PIECES.get(self.kind, self.lanes), self.lanes)


def kind_of(lanes: int, block: int, cb: int, c: int, w: int) -> int:
    """The kind of a view with these strides in bytes."""
    if block == 1:
        return CHANNELS if cb == 4 else ROWS if w == 4 else ANY
    if c != 4:
        return ANY
    if block % lanes == 0:
        return BLOCKED
    return next((kind for kind, piece in PIECES.items() if piece == block), ANY)


@inline
def channel_offset(channel, block, cb, c):
    """Byte offset of a channel of a view."""
    return (channel // block) * cb + (channel % block) * c


@inline
def zero_pixels(tile, target, count):
    """Zero `count` pixels of a blocked row."""
    for i in range(count):
        zero_vector(tile, target + i * 4 * tile.lanes)


@inline
def _pack_lanes(tile, row, first, valid, block, cb, c, w, target, from_, width):
    """Columns from_ … width-1, float by float."""
    size = 4 * tile.lanes
    if valid < tile.lanes:
        zero_pixels(tile, target + from_ * size, width - from_)
    for lane in range(valid):
        start = row + channel_offset(first + lane, block, cb, c)
        for i in range(from_, width):
            copy_float(tile, start + i * w, target + i * size + 4 * lane)


def _pack_any(tile, row, first, valid, block, cb, c, w, target, width):
    _pack_lanes(tile, row, first, valid, block, cb, c, w, target, 0, width)


def _pack_blocked(tile, row, first, valid, block, cb, c, w, target, width):
    start = row + channel_offset(first, block, cb, c)
    size = 4 * tile.lanes
    if valid == tile.lanes:
        for i in range(width):
            copy_vector(tile, start + i * w, target + i * size)
    else:
        for i in range(width):
            copy_valid(tile, start + i * w, target + i * size, valid)


def _pack_pieces(tile, row, first, valid, block, cb, c, w, target, width):
    start = row + channel_offset(first, block, cb, c)
    for i in range(width):
        gather_blocks(tile, start + i * w, cb, valid, target + i * 4 * tile.lanes)


def _pack_channels(tile, row, first, valid, block, cb, c, w, target, width):
    start = row + first * cb
    size = 4 * tile.lanes
    if valid == tile.lanes:
        for i in range(width):
            copy_vector(tile, start + i * w, target + i * size)
        return
    whole = 0  # pixels whose vectors end within the row
    if w > 0:
        whole = max(0, ((width - 1) * w + 4 * valid - size) // w + 1)
    for i in range(whole):
        copy_valid(tile, start + i * w, target + i * size, valid)
    _pack_lanes(tile, row, first, valid, block, cb, c, w, target, whole, width)


def _pack_rows(tile, row, first, valid, block, cb, c, w, target, width):
    start = row + first * cb
    size = 4 * tile.lanes
    if width < 4:
        _pack_lanes(tile, row, first, valid, block, cb, c, w, target, 0, width)
    elif width < tile.lanes:
        for i in range(0, width, 4):
            at = min(i, width - 4)  # the last block of pixels overlaps the one before
            transpose_from_narrow(tile, start + at * 4, cb, valid, target + at * size, size)
    else:
        for i in range(0, width, tile.lanes):
            at = min(i, width - tile.lanes)
            if valid == tile.lanes:
                transpose_block(tile, start + at * 4, cb, target + at * size, size)
            else:
                transpose_part(tile, start + at * 4, cb, valid, target + at * size, size, tile.lanes)


_PACK = {
    BLOCKED: _pack_blocked,
    CHANNELS: _pack_channels,
    ROWS: _pack_rows,
    ANY: _pack_any,
    FOURS: _pack_pieces,
    EIGHTS: _pack_pieces,
}


@choose(lambda tile: _PACK[tile.kind])
def pack_row(tile, row, first, valid, block, cb, c, w, target, width):
    """Columns 0 … width-1 of channels first … first+valid-1 to a blocked row at `target`, missing lanes zero.

    `valid` is at least 1; `first` starts a block where the kind is one of blocks.
    """


def _unpack_any(tile, source, first, valid, block, cb, c, w, row, width):
    for lane in range(valid):
        start = row + channel_offset(first + lane, block, cb, c)
        for i in range(width):
            copy_float(tile, source + (i * tile.lanes + lane) * 4, start + i * w)


def _unpack_blocked(tile, source, first, valid, block, cb, c, w, row, width):
    start = row + channel_offset(first, block, cb, c)
    for i in range(width):
        copy_vector(tile, source + i * 4 * tile.lanes, start + i * w)


def _unpack_pieces(tile, source, first, valid, block, cb, c, w, row, width):
    start = row + channel_offset(first, block, cb, c)
    for i in range(width):
        scatter_blocks(tile, source + i * 4 * tile.lanes, start + i * w, cb, valid)


def _unpack_channels(tile, source, first, valid, block, cb, c, w, row, width):
    start = row + first * cb
    if valid == tile.lanes:
        for i in range(width):
            copy_vector(tile, source + i * 4 * tile.lanes, start + i * w)
        return
    for i in range(width):
        for lane in range(valid):
            copy_float(tile, source + (i * tile.lanes + lane) * 4, start + i * w + 4 * lane)


def _unpack_rows(tile, source, first, valid, block, cb, c, w, row, width):
    start = row + first * cb
    size = 4 * tile.lanes
    if width < 4:
        for lane in range(valid):
            for i in range(width):
                copy_float(tile, source + i * size + 4 * lane, start + lane * cb + i * 4)
    elif width < tile.lanes:
        for i in range(0, width, 4):
            at = min(i, width - 4)
            transpose_to_narrow(tile, source + at * size, size, start + at * 4, cb, valid)
    else:
        for i in range(0, width, tile.lanes):
            at = min(i, width - tile.lanes)
            if valid == tile.lanes:
                transpose_block(tile, source + at * size, size, start + at * 4, cb)
            else:
                transpose_part(tile, source + at * size, size, tile.lanes, start + at * 4, cb, valid)


_UNPACK = {
    BLOCKED: _unpack_blocked,
    CHANNELS: _unpack_channels,
    ROWS: _unpack_rows,
    ANY: _unpack_any,
    FOURS: _unpack_pieces,
    EIGHTS: _unpack_pieces,
}


@choose(lambda tile: _UNPACK[tile.kind])
def unpack_row(tile, source, first, valid, block, cb, c, w, row, width):
    """The reverse: a blocked row to columns 0 … width-1 of channels first … first+valid-1 of a view.

    Views in contiguous blocks get whole blocks: their tail lanes are written as they are in the source.
    """


@inline
def copy_line(tile, source, w, target, width):
    """`width` floats, `w` bytes apart, to consecutive ones."""
    done = 0
    if w == 4:
        while done + tile.lanes <= width:
            copy_vector(tile, source + done * 4, target + done * 4)
            done += tile.lanes
    for i in range(done, width):
        copy_float(tile, source + i * w, target + i * 4)


@inline
def zero_line(tile, target, count):
    """Zero `count` floats."""
    done = 0
    while done + tile.lanes <= count:
        zero_vector(tile, target + done * 4)
        done += tile.lanes
    for i in range(done, count):
        zero_float(tile, target + i * 4)
