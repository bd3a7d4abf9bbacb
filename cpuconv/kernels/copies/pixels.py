"""Reorders between NHWC pixels that do not fill 32-bit groups, and blocks longer than them or of at least 16 bytes."""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.copies.unaligned import (
    copy_quad,
    copy_unaligned,
    copy_words,
    pack_partial,
    unpack_partial,
    zero_words,
)
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel


@dataclass(frozen=True)
class PixelTile:
    """Tile of the kernel.

    Attributes
    ----------
    lanes : int
        32-bit lanes per vector, which is no longer than a block.
    packs : bool
        Whether pixels become blocks; else the reverse.
    word : int
        Bytes per move of a pixel's last, partial block: 8, or those of a shorter block.
    """

    lanes: int
    packs: bool
    word: int

    @property
    def bytes(self) -> int:
        """Bytes per vector."""
        return 4 * self.lanes


@inline
def _copied(tile, x, x_pixel, y, y_pixel, bytes_, pixels):
    """Copy `bytes_` bytes of each pixel, a multiple of 16."""
    at = 0
    while at + tile.bytes <= bytes_:
        for pixel in range(pixels):
            copy_unaligned(tile, x + at + pixel * x_pixel, y + at + pixel * y_pixel)
        at += tile.bytes
    while at < bytes_:
        for pixel in range(pixels):
            copy_quad(tile, x + at + pixel * x_pixel, y + at + pixel * y_pixel)
        at += 16


@inline
def _last_block(tile, args, x, y, before, pixels):
    """Move the last block, in which the channels end."""
    here = args.end
    whole = here // 16 * 16
    _copied(tile, x, args.x_pixel, y, args.y_pixel, whole, pixels)
    at = whole
    if at + tile.word <= here:
        copy_words(tile, x + at, args.x_pixel, y + at, args.y_pixel, pixels)
        at += tile.word
    _partial_block(tile, args, x, y, before, at, here - at, pixels)


def _pack_partial(tile, args, x, y, before, at, bytes_, pixels):
    if bytes_ > 0:
        pack_partial(tile, x + at, args.x_pixel, y + at, args.y_pixel, bytes_, args.alone != 0, pixels)
        at += tile.word
    while at < args.block:
        zero_words(tile, y + at, args.y_pixel, pixels)
        at += tile.word


def _unpack_partial(tile, args, x, y, before, at, bytes_, pixels):
    if bytes_ > 0:
        previous = x + at - tile.word if at > 0 else before + args.block - tile.word
        unpack_partial(tile, previous, x + at, args.x_pixel, y + at, args.y_pixel, bytes_, args.alone != 0, pixels)


@specialise_on_tile(lambda tile: _pack_partial if tile.packs else _unpack_partial)
def _partial_block(tile, args, x, y, before, at, bytes_, pixels):
    """Move the last `bytes_` bytes of the pixels, `at` bytes into their last block; `before` is the block before."""


@kernel(
    "x y units strips strip width rows blocks block end alone x_image x_h x_block x_pixel y_image y_h y_block y_pixel"
)
def move_pixels(tile, worker, before, part, parts, args):
    """y = x in another layout.

    A unit is a strip of a row; the last strip takes the remainder. The last of the `blocks` blocks has `end` bytes; if
    it is the only one and shorter than a word, pixels are `alone`.
    """
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        strip, rest = unit % args.strips, unit // args.strips
        column = strip * args.strip
        pixels = args.strip if strip < args.strips - 1 else args.width - column
        row, image = rest % args.rows, rest // args.rows
        x = args.x + image * args.x_image + row * args.x_h + column * args.x_pixel
        y = args.y + image * args.y_image + row * args.y_h + column * args.y_pixel
        for _ in range(args.blocks - 1):
            _copied(tile, x, args.x_pixel, y, args.y_pixel, args.block, pixels)
            x += args.x_block
            y += args.y_block
        _last_block(tile, args, x, y, x - args.x_block, pixels)
