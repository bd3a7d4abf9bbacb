"""Rows of pixels between any layout and channel blocks of `lanes`: the moves that packing and reorders are made of.

A view is where element (channel, column) of an image row lies: row + (channel // block)·cb + (channel % block)·c +
column·w, in bytes. Its `kind`, chosen from the strides when a plan is bound, picks the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import njit

from cpuconv.micro.intrinsics import copy_float, copy_vector, zero_float, zero_vector
from cpuconv.micro.moves import copy_valid, gather_blocks, scatter_blocks
from cpuconv.micro.transpose import transpose_block, transpose_from_narrow, transpose_part, transpose_to_narrow

inline = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
"""Decorator of helpers that are always inlined. A call that is left checks a status, and the kernel's C entry then keeps
code that raises exceptions: its symbols are missing where a kernel is loaded from disk."""

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
def pack_row(tile, row, first, valid, block, cb, c, w, target, width):
    """Columns 0 … width-1 of channels first … first+valid-1 to a blocked row at `target`, missing lanes zero.

    `valid` is at least 1; `first` starts a block where the kind is one of blocks.
    """
    size = 4 * tile.lanes
    start = row + channel_offset(first, block, cb, c)
    done = 0
    if tile.kind == 0:  # BLOCKED
        if valid == tile.lanes:
            for i in range(width):
                copy_vector(tile, start + i * w, target + i * size)
        else:
            for i in range(width):
                copy_valid(tile, start + i * w, target + i * size, valid)
        return
    if tile.kind >= 4:  # FOURS, EIGHTS
        for i in range(width):
            gather_blocks(tile, start + i * w, cb, valid, target + i * size)
        return
    if tile.kind == 1:  # CHANNELS
        if valid == tile.lanes:
            for i in range(width):
                copy_vector(tile, start + i * w, target + i * size)
            return
        if w > 0:  # whole vectors where they end within the row
            done = max(0, ((width - 1) * w + 4 * valid - size) // w + 1)
            for i in range(done):
                copy_valid(tile, start + i * w, target + i * size, valid)
    if tile.kind == 2 and width >= tile.lanes:  # ROWS; the last of the transposed blocks overlaps the one before
        while done < width:
            at = min(done, width - tile.lanes)
            if valid == tile.lanes:
                transpose_block(tile, start + at * 4, cb, target + at * size, size)
            else:
                transpose_part(tile, start + at * 4, cb, valid, target + at * size, size, tile.lanes)
            done += tile.lanes
        return
    if tile.kind == 2 and width >= 4:
        while done < width:
            at = min(done, width - 4)
            transpose_from_narrow(tile, start + at * 4, cb, valid, target + at * size, size)
            done += 4
        return
    if valid < tile.lanes:
        zero_pixels(tile, target + done * size, width - done)
    for lane in range(valid):
        lane_start = row + channel_offset(first + lane, block, cb, c)
        for i in range(done, width):
            copy_float(tile, lane_start + i * w, target + i * size + 4 * lane)


@inline
def unpack_row(tile, source, first, valid, block, cb, c, w, row, width):
    """The reverse: a blocked row to columns 0 … width-1 of channels first … first+valid-1 of a view.

    Views in contiguous blocks get whole blocks: their tail lanes are written as they are in the source.
    """
    size = 4 * tile.lanes
    start = row + channel_offset(first, block, cb, c)
    done = 0
    if tile.kind == 0 or (tile.kind == 1 and valid == tile.lanes):  # BLOCKED, CHANNELS
        for i in range(width):
            copy_vector(tile, source + i * size, start + i * w)
        return
    if tile.kind >= 4:  # FOURS, EIGHTS
        for i in range(width):
            scatter_blocks(tile, source + i * size, start + i * w, cb, valid)
        return
    if tile.kind == 1:
        for i in range(width):
            for lane in range(valid):
                copy_float(tile, source + i * size + 4 * lane, start + i * w + 4 * lane)
        return
    if tile.kind == 2 and width >= tile.lanes:  # ROWS
        while done < width:
            at = min(done, width - tile.lanes)
            if valid == tile.lanes:
                transpose_block(tile, source + at * size, size, start + at * 4, cb)
            else:
                transpose_part(tile, source + at * size, size, tile.lanes, start + at * 4, cb, valid)
            done += tile.lanes
        return
    if tile.kind == 2 and width >= 4:
        while done < width:
            at = min(done, width - 4)
            transpose_to_narrow(tile, source + at * size, size, start + at * 4, cb, valid)
            done += 4
        return
    for lane in range(valid):
        lane_start = row + channel_offset(first + lane, block, cb, c)
        for i in range(width):
            copy_float(tile, source + i * size + 4 * lane, lane_start + i * w)


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
