"""Pack rows of pixels of any layout into vectors of channels, and unpack them: the inner loops of packing and reorders.

In a view, element (channel, column) of an image row is at row + (channel // block)·cb + (channel % block)·c + column·w,
in bytes. The view's `kind`, selected from the strides when a plan is bound, selects the loop.

A vector holds `lanes` 32-bit groups of a pixel's channels: one float32, two 16-bit or four 8-bit elements each. Where
the elements of a group are adjacent in the view, groups are moved like float32.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.kernels.emit.interleave import (
    lines_from_words,
    planes_from_words,
    some_planes_from_words,
    words_from_planes,
    words_from_some_planes,
)
from cpuconv.kernels.emit.intrinsics import (
    copy_byte,
    copy_element,
    copy_float,
    copy_vector,
    zero_float,
    zero_vector,
)
from cpuconv.kernels.emit.transpose import transpose_block, transpose_from_narrow, transpose_part, transpose_to_narrow
from cpuconv.kernels.emit.vector_copies import (
    copy_valid,
    gather_blocks,
    keep_valid,
    masks_elements,
    scatter_blocks,
    store_valid,
)
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline

BLOCKED, CHANNELS, ROWS, ANY, FOURS, EIGHTS, PAIRS, WORDS, PLANES = range(9)
"""Kinds of views: vectors contiguous, in blocks of a vector or a multiple; channels contiguous (NHWC); pixels
contiguous (NCHW); other; contiguous blocks of 4, 8 or 2 32-bit groups, fewer than `lanes`. For narrower elements:
blocks of one 32-bit group, contiguous from pixel to pixel; pixels contiguous (NCHW)."""

PIECES = {FOURS: 4, EIGHTS: 8, PAIRS: 2}


@dataclass(frozen=True)
class RowTile:
    """Tile of a row loop: lanes per vector, kind of view, and bytes per element."""

    lanes: int
    kind: int
    bytes: int = 4

    @property
    def piece(self) -> int:
        """32-bit groups per block, at most a vector."""
        return min(PIECES.get(self.kind, self.lanes), self.lanes)

    @property
    def each(self) -> int:
        """Elements per 32-bit group."""
        return 4 // self.bytes

    @property
    def group(self) -> int:
        """Elements per vector."""
        return self.lanes * self.each

    @property
    def floats(self) -> RowTile:
        """Tile for rows of 32-bit elements."""
        return RowTile(self.lanes, ROWS)

    @property
    def least(self) -> int:
        """Minimum pixels of a transpose between rows and vectors."""
        return 16 // self.bytes


def kind_of(lanes: int, block: int, cb: int, c: int, w: int, element: Element = F32, whole: bool = True) -> int:
    """Kind of a view with these strides in bytes; `whole`: the channels of a pixel fill 32-bit groups."""
    size = element.bytes
    if block == 1:
        if cb == size and (whole or masks_elements(size)):
            return CHANNELS
        return (ROWS if size == 4 else PLANES) if w == size else ANY
    words, rest = divmod(block * size, 4)
    if c != size or rest:
        return ANY
    if words % lanes == 0:
        return BLOCKED
    if words == 1:
        return WORDS if w == 4 else ANY
    return next((kind for kind, piece in PIECES.items() if piece == words), ANY)


@inline
def channel_offset(channel, block, cb, c):
    """Byte offset of a channel of a view."""
    return (channel // block) * cb + (channel % block) * c


@inline
def words_of(tile, elements):
    """Number of 32-bit groups that hold `elements` elements."""
    return (elements + tile.each - 1) // tile.each


@inline
def zero_vectors(tile, target, step, count):
    """Zero `count` vectors, `step` bytes apart."""
    for i in range(count):
        zero_vector(tile, target + i * step)


@inline
def zero_pixels(tile, target, count):
    """Zero `count` pixels of a blocked row."""
    zero_vectors(tile, target, 4 * tile.lanes, count)


@inline
def _pack_lanes(tile, row, first, valid, block, cb, c, w, target, step, width):
    """Pack element by element."""
    if valid < tile.group:
        zero_vectors(tile, target, step, width)
    for lane in range(valid):
        start = row + channel_offset(first + lane, block, cb, c)
        for i in range(width):
            copy_element(tile, start + i * w, target + i * step + tile.bytes * lane)


def _pack_any(tile, row, first, valid, block, cb, c, w, target, step, width):
    _pack_lanes(tile, row, first, valid, block, cb, c, w, target, step, width)


def _pack_blocked(tile, row, first, valid, block, cb, c, w, target, step, width):
    start = row + channel_offset(first, block, cb, c)
    if valid == tile.group:
        for i in range(width):
            copy_vector(tile, start + i * w, target + i * step)
    else:
        for i in range(width):
            copy_valid(tile, start + i * w, target + i * step, valid)


def _pack_pieces(tile, row, first, valid, block, cb, c, w, target, step, width):
    start = row + channel_offset(first, block, cb, c)
    for i in range(width):
        gather_blocks(tile, start + i * w, cb, valid, target + i * step)


def _pack_rows(tile, row, first, valid, block, cb, c, w, target, step, width):
    start = row + first * cb
    if width < 4:
        _pack_lanes(tile, row, first, valid, block, cb, c, w, target, step, width)
        return
    done = 0
    while done + tile.lanes <= width:
        if valid == tile.lanes:
            transpose_block(tile, start + done * 4, cb, target + done * step, step)
        else:
            transpose_part(tile, start + done * 4, cb, valid, target + done * step, step, tile.lanes)
        done += tile.lanes
    for i in range(done, width, 4):
        at = min(i, width - 4)  # the last pixels overlap the ones before
        transpose_from_narrow(tile, start + at * 4, cb, valid, target + at * step, step)


def _pack_words(tile, row, first, valid, block, cb, c, w, target, step, width):
    if width < 4:
        _pack_lanes(tile, row, first, valid, block, cb, c, w, target, step, width)
        return
    words = words_of(tile, valid)
    pack_vectors(tile.floats, row, first // tile.each, words, 1, cb, 0, 4, target, step, width)
    if valid < tile.group and step >= 4 * tile.lanes:  # where vectors overlap, the next one overwrote the rest
        for i in range(width):
            keep_valid(tile, target + i * step, valid)


def _pack_planes(tile, row, first, valid, block, cb, c, w, target, step, width):
    if width < tile.least:
        _pack_lanes(tile, row, first, valid, block, cb, c, w, target, step, width)
        return
    start = row + first * cb
    for i in range(0, width, tile.least):
        at = min(i, width - tile.least)  # the last pixels overlap the ones before
        if valid == tile.group:
            words_from_planes(tile, start + at * tile.bytes, cb, target + at * step, step)
        else:
            words_from_some_planes(tile, start + at * tile.bytes, cb, valid, target + at * step, step)


_PACK = {
    BLOCKED: _pack_blocked,
    CHANNELS: _pack_blocked,
    ROWS: _pack_rows,
    ANY: _pack_any,
    FOURS: _pack_pieces,
    EIGHTS: _pack_pieces,
    PAIRS: _pack_pieces,
    WORDS: _pack_words,
    PLANES: _pack_planes,
}


@specialise_on_tile(lambda tile: _PACK[tile.kind])
def pack_vectors(tile, row, first, valid, block, cb, c, w, target, step, width):
    """Pack columns 0 … width-1 of channels first … first+valid-1 to vectors `step` bytes apart, padded by zeros.

    `valid` is at least 1; for kinds with blocks, `first` is the first channel of a block.
    """


@inline
def pack_row(tile, row, first, valid, block, cb, c, w, target, width):
    """`pack_vectors` to a blocked row at `target`."""
    pack_vectors(tile, row, first, valid, block, cb, c, w, target, 4 * tile.lanes, width)


@inline
def _unpack_lanes(tile, source, step, first, valid, block, cb, c, w, row, width):
    """Unpack element by element."""
    for lane in range(valid):
        start = row + channel_offset(first + lane, block, cb, c)
        for i in range(width):
            copy_element(tile, source + i * step + lane * tile.bytes, start + i * w)


def _unpack_any(tile, source, step, first, valid, block, cb, c, w, row, width):
    _unpack_lanes(tile, source, step, first, valid, block, cb, c, w, row, width)


def _unpack_blocked(tile, source, step, first, valid, block, cb, c, w, row, width):
    start = row + channel_offset(first, block, cb, c)
    for i in range(width):
        copy_vector(tile, source + i * step, start + i * w)


def _unpack_pieces(tile, source, step, first, valid, block, cb, c, w, row, width):
    start = row + channel_offset(first, block, cb, c)
    for i in range(width):
        scatter_blocks(tile, source + i * step, start + i * w, cb, valid)


def _unpack_channels(tile, source, step, first, valid, block, cb, c, w, row, width):
    start = row + first * cb
    if valid == tile.group:
        for i in range(width):
            copy_vector(tile, source + i * step, start + i * w)
    else:
        for i in range(width):
            store_valid(tile, source + i * step, start + i * w, valid)


def _unpack_rows(tile, source, step, first, valid, block, cb, c, w, row, width):
    start = row + first * cb
    if width < 4:
        _unpack_lanes(tile, source, step, first, valid, block, cb, c, w, row, width)
        return
    done = 0
    while done + tile.lanes <= width:
        if valid == tile.lanes:
            transpose_block(tile, source + done * step, step, start + done * 4, cb)
        else:
            transpose_part(tile, source + done * step, step, tile.lanes, start + done * 4, cb, valid)
        done += tile.lanes
    for i in range(done, width, 4):
        at = min(i, width - 4)
        transpose_to_narrow(tile, source + at * step, step, start + at * 4, cb, valid)


def _unpack_words(tile, source, step, first, valid, block, cb, c, w, row, width):
    words = words_of(tile, valid)
    unpack_vectors(tile.floats, source, step, first // tile.each, words, 1, cb, 0, 4, row, width)


def _unpack_planes(tile, source, step, first, valid, block, cb, c, w, row, width):
    if width < tile.least:
        _unpack_lanes(tile, source, step, first, valid, block, cb, c, w, row, width)
        return
    start = row + first * cb
    done = 0
    if valid == tile.group:
        while done + tile.group <= width:
            lines_from_words(tile, source + done * step, step, start + done * tile.bytes, cb)
            done += tile.group
    for i in range(done, width, tile.least):
        at = min(i, width - tile.least)
        if valid == tile.group:
            planes_from_words(tile, source + at * step, step, start + at * tile.bytes, cb)
        else:
            some_planes_from_words(tile, source + at * step, step, start + at * tile.bytes, cb, valid)


_UNPACK = {
    BLOCKED: _unpack_blocked,
    CHANNELS: _unpack_channels,
    ROWS: _unpack_rows,
    ANY: _unpack_any,
    FOURS: _unpack_pieces,
    EIGHTS: _unpack_pieces,
    PAIRS: _unpack_pieces,
    WORDS: _unpack_words,
    PLANES: _unpack_planes,
}


@specialise_on_tile(lambda tile: _UNPACK[tile.kind])
def unpack_vectors(tile, source, step, first, valid, block, cb, c, w, row, width):
    """Unpack vectors `step` bytes apart to columns 0 … width-1 of channels first … first+valid-1 of a view.

    Views with contiguous blocks get whole blocks, tail lanes included.
    """


@inline
def unpack_row(tile, source, first, valid, block, cb, c, w, row, width):
    """`unpack_vectors` from a blocked row at `source`."""
    unpack_vectors(tile, source, 4 * tile.lanes, first, valid, block, cb, c, w, row, width)


@inline
def copy_line(tile, source, w, target, width):
    """Copy `width` 32-bit elements, `w` bytes apart, to contiguous memory."""
    done = 0
    if w == 4:
        while done + tile.lanes <= width:
            copy_vector(tile, source + done * 4, target + done * 4)
            done += tile.lanes
    for i in range(done, width):
        copy_float(tile, source + i * w, target + i * 4)


@inline
def copy_bytes(tile, source, target, count):
    """Copy `count` contiguous bytes."""
    copy_line(tile, source, 4, target, count // 4)
    for i in range(count // 4 * 4, count):
        copy_byte(tile, source + i, target + i)


@inline
def zero_line(tile, target, count):
    """Zero `count` 32-bit elements."""
    done = 0
    while done + tile.lanes <= count:
        zero_vector(tile, target + done * 4)
        done += tile.lanes
    for i in range(done, count):
        zero_float(tile, target + i * 4)
