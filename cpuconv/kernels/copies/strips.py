"""Reorders in strips: a few pixels with all channels at a time.

With contiguous channels, pixels are often a power of two of bytes apart, so that their cache lines share a cache set.
The work is therefore cut so that each cache line is used wholly before it is evicted. A *bundle* is the vectors of
channels that are moved together: those of one cache line, where sets are scarce. All pixels of a strip are moved for
one bundle, then for the next. A unit is a strip of pixels of a row and a span of bundles; a part is a range of units.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, RowTile, pack_vectors, unpack_vectors, zero_vectors
from cpuconv.kernels.emit.interleave import lines_from_words, planes_from_words, words_from_planes
from cpuconv.kernels.emit.intrinsics import copy_vector, emitter
from cpuconv.kernels.emit.transpose import NARROW, four_columns, transpose_quads
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel

VECTORS = (BLOCKED, CHANNELS)
"""Kinds of views in which a pixel's vector of channels is contiguous."""


@dataclass(frozen=True)
class StripTile:
    """Tile of the strip kernel: loops of source and target, and how much they move per step.

    Attributes
    ----------
    lanes : int
        32-bit lanes per vector.
    source, target : RowTile
    bundle : int
        Vectors of a pixel that are moved together: 1, 2 or 4.
    pixels : int
        Pixels that are moved together.
    """

    lanes: int
    source: RowTile
    target: RowTile
    bundle: int
    pixels: int

    @property
    def kinds(self) -> set[int]:
        """Kinds of the source and the target view."""
        return {self.source.kind, self.target.kind}

    @property
    def packs(self) -> bool:
        """Whether rows of channels become vectors; else the reverse."""
        return self.source.kind not in VECTORS

    @property
    def bytes(self) -> int:
        """Bytes per element."""
        return self.target.bytes

    @property
    def group(self) -> int:
        """Channels per vector."""
        return self.target.group


def _vectors(vec: Vector, start: Any, near: Any, far: Any, count: int) -> list[Any]:
    """Addresses of the vectors of a bundle."""
    start = vec.pointer(start)
    pairs = [start if i < 2 else vec.offset(start, far) for i in range(count)]
    return [vec.offset(pair, near) if i % 2 else pair for i, pair in enumerate(pairs)]


def _copy_pixels(tile: Any, vec: Vector, pixels: int, x: tuple[Any, ...], y: tuple[Any, ...]) -> None:
    """Copy a bundle of `pixels` pixels; x and y are (address, `near`, `far`, bytes between pixels)."""
    read: list[Any] = []
    for (start, near, far, step), store in ((x, False), (y, True)):
        for pixel in range(pixels):
            at = vec.builder.add(start, vec.builder.mul(step, I64(pixel)))
            for i, address in enumerate(_vectors(vec, at, near, far, tile.bundle)):
                if store:
                    vec.store(read[pixel * tile.bundle + i], address)
                else:
                    read.append(vec.load(address))


@emitter
def _copy_bundles(
    tile: Any,
    vec: Vector,
    x: Any,
    x_near: Any,
    x_far: Any,
    x_w: Any,
    y: Any,
    y_near: Any,
    y_far: Any,
    y_w: Any,
) -> None:
    """Copy a bundle of `tile.pixels` pixels; its second vector is `near` bytes from the first, the next two `far`."""
    _copy_pixels(tile, vec, tile.pixels, (x, x_near, x_far, x_w), (y, y_near, y_far, y_w))


@emitter
def _copy_bundle(
    tile: Any,
    vec: Vector,
    x: Any,
    x_near: Any,
    x_far: Any,
    y: Any,
    y_near: Any,
    y_far: Any,
) -> None:
    """Copy a bundle of one pixel."""
    _copy_pixels(tile, vec, 1, (x, x_near, x_far, I64(0)), (y, y_near, y_far, I64(0)))


@emitter
def _pack_pixels(tile: Any, vec: Vector, x: Any, row_step: Any, y: Any, step: Any) -> None:
    """Transpose `tile.pixels` float32 of each of `lanes` rows to vectors `step` bytes apart."""
    x, y = vec.pointer(x), vec.pointer(y)
    rows = [vec.offset(x, vec.builder.mul(row_step, I64(i))) for i in range(vec.lanes)]
    for first in range(0, tile.pixels, NARROW):
        for i, column in enumerate(four_columns(vec, rows.__getitem__, 4 * first), first):
            vec.store(column, vec.offset(y, vec.builder.mul(step, I64(i))))


@emitter
def _unpack_pixels(tile: Any, vec: Vector, x: Any, step: Any, y: Any, row_step: Any) -> None:
    """Transpose back: the reverse of `_pack_pixels`."""
    x, y = vec.pointer(x), vec.pointer(y)
    pixels = [vec.offset(x, vec.builder.mul(step, I64(i))) for i in range(tile.pixels)]
    rows = [vec.offset(y, vec.builder.mul(row_step, I64(i))) for i in range(vec.lanes)]
    if tile.pixels == vec.lanes:
        for first in range(0, vec.lanes, NARROW):
            for i, row in enumerate(four_columns(vec, pixels.__getitem__, 4 * first), first):
                vec.store(row, rows[i])
        return
    narrow = Vector(vec.builder, NARROW)
    for i, column in enumerate(transpose_quads(vec, [vec.load(pixel) for pixel in pixels])):
        for first in range(0, vec.lanes, NARROW):
            narrow.store(vec.shuffle(column, column, range(first, first + NARROW)), rows[first + i])


@inline
def _of_bundle(start, number, near, far):
    """Address of a vector of a bundle."""
    return start + (number & 1) * near + (number >> 1) * far


def _copied(tile, args, x, y, vectors, width):
    if vectors == tile.bundle:
        x_w, y_w = args.x_w, args.y_w
        left = width
        while left >= tile.pixels:
            _copy_bundles(tile, x, args.x_near, args.x_far, x_w, y, args.y_near, args.y_far, y_w)
            x += tile.pixels * x_w
            y += tile.pixels * y_w
            left -= tile.pixels
        while left > 0:
            _copy_bundle(tile, x, args.x_near, args.x_far, y, args.y_near, args.y_far)
            x += x_w
            y += y_w
            left -= 1
        return
    for number in range(vectors):
        source = _of_bundle(x, number, args.x_near, args.x_far)
        target = _of_bundle(y, number, args.y_near, args.y_far)
        for i in range(width):
            copy_vector(tile, source + i * args.x_w, target + i * args.y_w)


@emitter
def _transpose(tile: Any, vec: Vector, x: Any, x_step: Any, y: Any, y_step: Any) -> None:
    """Transpose `tile.pixels` pixels of a vector of channels: rows of channels to vectors, or vectors to rows."""
    if tile.packs:
        chosen = _pack_pixels if tile.bytes == 4 else words_from_planes
    elif tile.bytes == 4:
        chosen = _unpack_pixels
    else:
        chosen = lines_from_words if tile.pixels == tile.group else planes_from_words
    chosen.emit(vec.builder, tile, x, x_step, y, y_step)


def _transposed(tile, args, x, y, vectors, width):
    x_step, y_step = args.x_cb if tile.packs else args.x_w, args.y_w if tile.packs else args.y_cb
    for i in range(0, width, tile.pixels):
        at = min(i, width - tile.pixels)  # the last pixels overlap the ones before
        for number in range(vectors):
            source = _of_bundle(x + at * args.x_w, number, args.x_near, args.x_far)
            target = _of_bundle(y + at * args.y_w, number, args.y_near, args.y_far)
            _transpose(tile, source, x_step, target, y_step)


@specialise_on_tile(lambda tile: _copied if tile.kinds <= {*VECTORS} else _transposed)
def _move(tile, args, x, y, vectors, width):
    """Move `width` pixels of `vectors` vectors of a bundle; x and y are the addresses of its first vector."""


@inline
def _start(channel, shift, cb, c):
    """Byte offset of a channel of a view whose blocks have 1 << `shift` channels."""
    return (channel >> shift) * cb + (channel & ((1 << shift) - 1)) * c


def _rest_to_blocks(tile, args, x, y, buffer, first, valid, width):
    target = y + _start(first, args.y_shift, args.y_cb, args.y_c)
    if valid > 0:
        pack_vectors(tile.source, x, first, valid, args.x_block, args.x_cb, args.x_c, args.x_w, target, args.y_w, width)
    else:
        zero_vectors(tile, target, args.y_w, width)


def _rest_of_blocks(tile, args, x, y, buffer, first, valid, width):
    source = x + _start(first, args.x_shift, args.x_cb, args.x_c)
    unpack_vectors(tile.target, source, args.x_w, first, valid, args.y_block, args.y_cb, args.y_c, args.y_w, y, width)


def _rest_through_buffer(tile, args, x, y, buffer, first, valid, width):
    step = 4 * tile.lanes
    at = 0
    while at < width:  # `range` with a variable step may raise, and then needs Numba at run time
        count = min(args.chunk, width - at)
        source, target = x + at * args.x_w, y + at * args.y_w
        pack_vectors(
            tile.source, source, first, valid, args.x_block, args.x_cb, args.x_c, args.x_w, buffer, step, count
        )
        unpack_vectors(
            tile.target, buffer, step, first, valid, args.y_block, args.y_cb, args.y_c, args.y_w, target, count
        )
        at += count


def _rest_of(tile):
    if tile.target.kind == BLOCKED:
        return _rest_to_blocks
    return _rest_of_blocks if tile.source.kind == BLOCKED else _rest_through_buffer


@specialise_on_tile(_rest_of)
def _move_rest(tile, args, x, y, buffer, first, valid, width):
    """Move `width` pixels of the vector of channels from `first` on, of which only `valid` exist."""


@kernel(
    "x y buffer buffer_step chunk units channels whole vectors rows strips strip spans span width "
    "x_image x_block x_cb x_c x_h x_w x_shift x_near x_far y_image y_block y_cb y_c y_h y_w y_shift y_near y_far"
)
def move_strips(tile, worker, before, part, parts, args):
    """y = x in another layout; channels from `channels` to the end of y's last block are zero.

    Of the `vectors` vectors of y, the first `whole` are full. Units are numbered with the span of `span` vectors
    fastest, then strip, row and image; the last strip of a row takes the remainder.
    """
    buffer = args.buffer + worker * args.buffer_step
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        at = unit % args.spans * args.span
        rest = unit // args.spans
        column = rest % args.strips * args.strip
        width = args.strip if rest % args.strips < args.strips - 1 else args.width - column
        rest = rest // args.strips
        row, image = rest % args.rows, rest // args.rows
        x = args.x + image * args.x_image + row * args.x_h + column * args.x_w
        y = args.y + image * args.y_image + row * args.y_h + column * args.y_w
        end = min(at + args.span, args.vectors)
        whole = min(end, args.whole)
        while at < whole:
            count = min(tile.bundle, whole - at)
            source = x + _start(at * tile.group, args.x_shift, args.x_cb, args.x_c)
            target = y + _start(at * tile.group, args.y_shift, args.y_cb, args.y_c)
            _move(tile, args, source, target, count, width)
            at += count
        while at < end:
            first = at * tile.group
            _move_rest(tile, args, x, y, buffer, first, min(tile.group, args.channels - first), width)
            at += 1
