"""Reorders between layouts by register transposes of channel groups, the channels that are adjacent in both layouts.

All layouts count as blocked: NCHW has blocks of one channel, NHWC one block of all channels. The finer of two layouts
defines the channel group (in code: piece) of 1, 2, 4 or 8 bytes. In the finer layout the pixels of a group are
contiguous and form a line; in the coarser one the groups of a pixel are. Tiles of lines and pixels are transposed in
registers. Where the last tile would reach past the end, it overlaps the one before. With too few groups for that,
missing groups are zeros, or not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.interleave import QUAD, interleaved, within_quads
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.transpose import NARROW, first_elements, join, present_rows
from cpuconv.kernels.pieces.ends import end_of_block, end_to_block, keep_first
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.described import specialise_on_tile
from cpuconv.runtime.kernel import kernel

NONE, TO_BLOCK, OF_BLOCK, CLEARED = range(4)
"""How a last, partial channel group is handled: there is none; read from the end of a pixel and padded with zeros;
written to the end of a pixel without padding; zero-filled in the target block."""


@dataclass(frozen=True)
class MatrixTile:
    """Tile of a transpose.

    Attributes
    ----------
    lanes : int
        32-bit lanes per vector.
    size : int
        Bytes per channel group: 1, 2, 4 or 8.
    pieces : int
        Channel groups of a pixel that are moved together: a power of two, or three.
    packs : bool
        Whether lines become pixels; else the reverse.
    dense : bool
        Whether a pixel has only those groups, less than 16 bytes.
    some : bool
        Whether a tile may be incomplete, with groups missing.
    cut : int
        Handling of a last, partial group: `NONE`, `TO_BLOCK`, `OF_BLOCK` or `CLEARED`.
    """

    lanes: int
    size: int
    pieces: int
    packs: bool
    dense: bool
    some: bool
    cut: int = NONE

    @property
    def word(self) -> int:
        """Bytes per move of a pixel's partial channel group."""
        return self.size

    @property
    def each(self) -> int:
        """Channel groups per 16 bytes."""
        return QUAD // self.size

    @property
    def wide(self) -> bool:
        """Whether vectors hold the groups of one pixel; else those of a few pixels, or lines."""
        return self.pieces > self.each or not self.packs and self.pieces == self.each

    @property
    def pixels(self) -> int:
        """Pixels per tile."""
        return self.each if self.packs and self.wide else self.lanes * NARROW // self.size


def _ordered(number: int) -> int:
    """Number of groups to interleave: the next power of two."""
    return 1 << (number - 1).bit_length()


def _parts(vec: Vector, value: Any, size: int) -> list[Any]:
    """Split a vector into parts of `size` bytes, as integers or vectors of 16 bytes."""
    if size == QUAD:
        return [vec.shuffle(value, value, range(at, at + NARROW)) for at in range(0, vec.lanes, NARROW)]
    kind = ir.VectorType(ir.IntType(8 * size), vec.size // size)
    parts = vec.builder.bitcast(value, kind)
    return [vec.builder.extract_element(parts, I64(at)) for at in range(kind.count)]


def _store(vec: Vector, value: Any, address: Any) -> None:
    """Store a value of any type at an unaligned address."""
    vec.builder.store(value, vec.builder.bitcast(address, value.type.as_pointer())).align = 1


def _row(vec: Vector, tile: MatrixTile, start: Any, step: Any, present: Any) -> Callable[[int], Any]:
    """Addresses of lines by group; missing groups get the address of the first."""
    if tile.some:
        return present_rows(vec, start, step, present)
    return lambda number: vec.offset(start, vec.builder.mul(step, I64(number)))


def _kept(vec: Vector, tile: MatrixTile, value: Any, present: Any) -> Any:
    """Zero the missing groups in pixels of `tile.pieces` groups."""
    if not tile.some:
        return value
    kind = ir.VectorType(ir.IntType(8 * tile.size), vec.size // tile.size)
    if tile.size == 8:
        first = vec.builder.insert_element(ir.Constant(kind, ir.Undefined), present, I64(0))
        counts = vec.shuffle(first, first, [0] * kind.count)
        there = vec.builder.icmp_signed("<", ir.Constant(kind, list(range(kind.count))), counts)
    else:
        there = first_elements(vec, present, tile.size)
    if tile.pieces < tile.each:
        there = vec.shuffle(there, there, [at % tile.pieces for at in range(kind.count)])
    pieces = vec.builder.bitcast(value, kind)
    return vec.builder.bitcast(vec.builder.select(there, pieces, ir.Constant(kind, None)), vec.type)


def _pack_wide(tile: MatrixTile, x: Any, x_step: Any, y: Any, y_step: Any, builder: Any) -> None:
    """Transpose to pixels of whole vectors; lines are read by 16 bytes."""
    vec, quad = Vector(builder, tile.pieces * tile.size // NARROW), Vector(builder, NARROW)
    lines = [
        join(
            vec,
            [
                quad.load(vec.offset(x, builder.mul(x_step, I64(at))), align=1)
                for at in range(number, tile.pieces, tile.each)
            ],
        )
        for number in range(tile.each)
    ]
    for number, pixel in enumerate(interleaved(vec, tile.size, lines)):
        place = vec.offset(y, builder.mul(y_step, I64(number)))
        vec.store(pixel, place, align=1)


def _pack_short(tile: MatrixTile, vec: Vector, x: Any, x_step: Any, y: Any, y_step: Any, present: Any) -> None:
    """Transpose to pixels of fewer bytes; lines are read by vectors."""
    row = _row(vec, tile, x, x_step, present)
    count = _ordered(tile.pieces)
    lines = [vec.load(row(min(number, tile.pieces - 1)), align=1) for number in range(count)]
    made = [_kept(vec, tile, value, present) for value in interleaved(vec, tile.size, lines)]
    bytes_, here = tile.pieces * tile.size, tile.each // count  # bytes per pixel; pixels per 16 bytes
    if count != tile.pieces:
        _store_three(tile, vec, made, y)
        return
    for number, value in enumerate(made):
        parts = _parts(vec, value, QUAD if tile.dense else bytes_)
        together = here if tile.dense else 1
        for at, part in enumerate(parts):
            first, within = divmod(at * together, here)
            pixel = first * tile.each + number * here + within
            place = pixel * bytes_ if tile.dense else vec.builder.mul(y_step, I64(pixel))
            _store(vec, part, vec.offset(y, place))


def _store_three(tile: MatrixTile, vec: Vector, made: list[Any], y: Any) -> None:
    """Store adjacent pixels of three groups out of four: 12 of 16 bytes, whose end the next 16 overwrite."""
    size, each = tile.size, tile.each
    order = [at for at in range(each) if at % 4 < 3]
    quarter = each // 4
    for number, value in enumerate(made):
        last = number == len(made) - 1
        if last:  # write nothing past the last pixel, but rewrite the last group of the one before
            before = made[number - 1]
            value = within_quads(vec, size, before, value, [*order[-quarter:], *(each + at for at in order)])
        else:
            value = within_quads(vec, size, value, value, [*order, *order[:quarter]])
        for at, part in enumerate(_parts(vec, value, QUAD)):
            _store(vec, part, vec.offset(y, at * 3 * QUAD + 12 * number - 4 * last))


def _pixels(tile: MatrixTile, vec: Vector, x: Any, x_step: Any, first: int, count: int) -> Any:
    """Load 16 bytes: the groups of `count` pixels."""
    quad, bytes_ = Vector(vec.builder, NARROW), tile.pieces * tile.size
    if tile.dense:
        return quad.load(vec.offset(x, first * bytes_), align=1)
    kind = ir.VectorType(ir.IntType(8 * bytes_), count)
    value: Any = ir.Constant(kind, ir.Undefined)
    for at in range(count):
        place = vec.offset(x, vec.builder.mul(x_step, I64(first + at)))
        piece = vec.builder.load(vec.builder.bitcast(place, kind.element.as_pointer()))
        piece.align = 1
        value = vec.builder.insert_element(value, piece, I64(at))
    return vec.builder.bitcast(value, quad.type)


def _unpacked(tile: MatrixTile, vec: Vector, x: Any, x_step: Any) -> list[Any]:
    """Transpose pixels to lines in registers."""
    quad, count = Vector(vec.builder, NARROW), _ordered(tile.pieces)
    starts = range(0, tile.pixels, tile.each)
    if tile.wide:

        def wide(number: int) -> Any:
            places = [vec.offset(x, vec.builder.mul(x_step, I64(first + number))) for first in starts]
            return join(vec, [quad.load(place, align=1) for place in places])

        return interleaved(vec, tile.size, [wide(number) for number in range(tile.each)])
    together = tile.each // count  # pixels per 16 bytes
    lines = []
    for number in range(count):
        order = [pixel * tile.pieces + min(at, tile.pieces - 1) for at in range(count) for pixel in range(together)]
        if count != tile.pieces:  # the last 12 bytes are read with those before, not past the end
            last = number == count - 1
            places = [vec.offset(x, first * 3 * tile.size + 12 * number - 4 * last) for first in starts]
            value = join(vec, [quad.load(place, align=1) for place in places])
            order = [at + 4 // tile.size * last for at in order]
        else:
            quads = [_pixels(tile, vec, x, x_step, first + number * together, together) for first in starts]
            value = join(vec, quads)
        lines.append(within_quads(vec, tile.size, value, value, order))
    return interleaved(vec, tile.size * together, lines)[: tile.pieces]


@emitter
def _transpose(tile: Any, vec: Vector, x: Any, x_step: Any, y: Any, y_step: Any, present: Any) -> None:
    """Transpose a tile: `tile.pieces` lines to `tile.pixels` pixels, or the reverse."""
    x, y = vec.pointer(x), vec.pointer(y)
    if tile.packs and tile.wide:
        _pack_wide(tile, x, x_step, y, y_step, vec.builder)
    elif tile.packs:
        _pack_short(tile, vec, x, x_step, y, y_step, present)
    else:
        lines = _unpacked(tile, vec, x, x_step)
        row = _row(vec, tile, y, y_step, present)
        for number, line in enumerate(lines):
            there = vec.builder.icmp_signed("<", I64(number), present)
            vec.store(vec.builder.select(there, line, lines[0]) if tile.some else line, row(number), align=1)


def _packed(tile, x, line, x_pixel, y, y_pixel, y_line, present, pixels):
    for first in range(0, pixels, tile.pixels):
        at = min(first, pixels - tile.pixels)
        _transpose(tile, x + at * tile.size, line, y + at * y_pixel, y_pixel, present)


def _unpacked_lines(tile, x, x_line, x_pixel, y, y_pixel, line, present, pixels):
    for first in range(0, pixels, tile.pixels):
        at = min(first, pixels - tile.pixels)
        _transpose(tile, x + at * x_pixel, x_pixel, y + at * tile.size, line, present)


@specialise_on_tile(lambda tile: _packed if tile.packs else _unpacked_lines)
def _move(tile, x, x_line, x_pixel, y, y_pixel, y_line, present, pixels):
    """Move `pixels` pixels of `tile.pieces` groups, of which the first `present` exist."""


def _no_end(tile, args, x, y, number, pixels):
    pass


def _end_to_block(tile, args, x, y, number, pixels):
    source, target = x + args.pieces * args.x_line, y + args.pieces * args.y_line
    end_to_block(tile, source, args.x_pixel, target, args.y_pixel, args.end, False, pixels)


def _end_of_block(tile, args, x, y, number, pixels):
    source, target = x + args.pieces * args.x_line, y + args.pieces * args.y_line
    end_of_block(tile, source - args.x_line, source, args.x_pixel, target, args.y_pixel, args.end, False, pixels)


def _end_cleared(tile, args, x, y, number, pixels):
    if number == args.blocks - 1:
        last = args.pieces - 1 - number * args.block
        keep_first(tile, y + last * args.y_line, args.y_pixel, args.end, pixels)


_ENDS = {NONE: _no_end, TO_BLOCK: _end_to_block, OF_BLOCK: _end_of_block, CLEARED: _end_cleared}


@specialise_on_tile(lambda tile: _ENDS[tile.cut])
def _end(tile, args, x, y, number, pixels):
    """Move the last, partial group of `pixels` pixels."""


@kernel(
    "x y units strips strips_first blocks_first strip width rows blocks pieces block stored end "
    "x_image x_h x_block x_line x_pixel y_image y_h y_block y_line y_pixel"
)
def transpose_pieces(tile, worker, before, part, parts, args):
    """y = x in another layout.

    Units are numbered with the strip, or the block of `block` groups of a pixel, fastest, then the other, row and image
    (`strips_first`: number of strips if they are fastest, else 1). The last strip of a row takes the remainder. Groups
    from `pieces` to `stored` are zero; a partial group has `end` bytes.
    """
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        number, strip = unit // args.strips_first % args.blocks, unit // args.blocks_first % args.strips
        column = strip * args.strip
        pixels = args.strip if strip < args.strips - 1 else args.width - column
        rest = unit // (args.blocks * args.strips)
        row, image = rest % args.rows, rest // args.rows
        first = number * args.block
        x = args.x + image * args.x_image + row * args.x_h + column * args.x_pixel
        y = args.y + image * args.y_image + row * args.y_h + column * args.y_pixel
        x, y = x + number * args.x_block, y + number * args.y_block
        there = min(args.block, args.pieces - first)
        end = min(args.block, args.stored - first)
        at = 0
        while at < end:
            if not tile.some:
                at = min(at, end - tile.pieces)
            present = min(tile.pieces, there - at)
            source, target = x + at * args.x_line, y + at * args.y_line
            _move(tile, source, args.x_line, args.x_pixel, target, args.y_pixel, args.y_line, present, pixels)
            at += tile.pieces
        _end(tile, args, x, y, number, pixels)
