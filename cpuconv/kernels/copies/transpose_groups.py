"""Reorders between layouts by register transposes of channel groups, the channels that are adjacent in both layouts.

All layouts count as blocked: NCHW has blocks of one channel, NHWC one block of all channels. The finer of two layouts
defines the channel group of 1, 2, 4 or 8 bytes. In the finer layout the pixels of a group are contiguous and form a
line; in the coarser one the groups of a pixel are. Tiles of lines and pixels are transposed in registers. Where the
last tile would reach past the end, it overlaps the one before. With too few groups for that, missing groups are zeros,
or not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.copies.unaligned import keep_first, pack_partial, unpack_partial
from cpuconv.kernels.emit.interleave import QUAD, interleaved, within_quads
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.transpose import NARROW, first_elements, join, present_rows
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import kernel

NO_PARTIAL, PAD_ON_WRITE, TRIM_ON_READ, ZERO_FILL = range(4)
"""How a last, partial channel group is handled: there is none; read from the end of a pixel and padded with zeros;
written to the end of a pixel without padding; zero-filled in the target block."""


@dataclass(frozen=True)
class TransposeTile:
    """Tile of a transpose.

    Attributes
    ----------
    lanes : int
        32-bit lanes per vector.
    group_bytes : int
        Bytes per channel group: 1, 2, 4 or 8.
    groups : int
        Channel groups of a pixel that are moved together: a power of two, or three.
    packs : bool
        Whether lines become pixels; else the reverse.
    dense : bool
        Whether a pixel has only those groups, less than 16 bytes.
    partial : bool
        Whether a tile may be incomplete, with groups missing.
    partial_group : int
        Handling of a last, partial group: `NO_PARTIAL`, `PAD_ON_WRITE`, `TRIM_ON_READ` or `ZERO_FILL`.
    """

    lanes: int
    group_bytes: int
    groups: int
    packs: bool
    dense: bool
    partial: bool
    partial_group: int = NO_PARTIAL

    @property
    def word(self) -> int:
        """Bytes per move of a pixel's partial channel group."""
        return self.group_bytes

    @property
    def each(self) -> int:
        """Channel groups per 16 bytes."""
        return QUAD // self.group_bytes

    @property
    def wide(self) -> bool:
        """Whether vectors hold the groups of one pixel; else those of a few pixels, or lines."""
        return self.groups > self.each or not self.packs and self.groups == self.each

    @property
    def pixels(self) -> int:
        """Pixels per tile."""
        return self.each if self.packs and self.wide else self.lanes * NARROW // self.group_bytes


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


def _row(vec: Vector, tile: TransposeTile, start: Any, step: Any, present: Any) -> Callable[[int], Any]:
    """Addresses of lines by group; missing groups get the address of the first."""
    if tile.partial:
        return present_rows(vec, start, step, present)
    return lambda number: vec.offset(start, vec.builder.mul(step, I64(number)))


def _kept(vec: Vector, tile: TransposeTile, value: Any, present: Any) -> Any:
    """Zero the missing groups in pixels of `tile.groups` groups."""
    if not tile.partial:
        return value
    kind = ir.VectorType(ir.IntType(8 * tile.group_bytes), vec.size // tile.group_bytes)
    if tile.group_bytes == 8:
        first = vec.builder.insert_element(ir.Constant(kind, ir.Undefined), present, I64(0))
        counts = vec.shuffle(first, first, [0] * kind.count)
        there = vec.builder.icmp_signed("<", ir.Constant(kind, list(range(kind.count))), counts)
    else:
        there = first_elements(vec, present, tile.group_bytes)
    if tile.groups < tile.each:
        there = vec.shuffle(there, there, [at % tile.groups for at in range(kind.count)])
    groups = vec.builder.bitcast(value, kind)
    return vec.builder.bitcast(vec.builder.select(there, groups, ir.Constant(kind, None)), vec.type)


def _pack_wide(tile: TransposeTile, x: Any, x_step: Any, y: Any, y_step: Any, builder: Any) -> None:
    """Transpose to pixels of whole vectors; lines are read by 16 bytes."""
    vec, quad = Vector(builder, tile.groups * tile.group_bytes // NARROW), Vector(builder, NARROW)
    lines = [
        join(
            vec,
            [
                quad.load(vec.offset(x, builder.mul(x_step, I64(at))), align=1)
                for at in range(number, tile.groups, tile.each)
            ],
        )
        for number in range(tile.each)
    ]
    for number, pixel in enumerate(interleaved(vec, tile.group_bytes, lines)):
        place = vec.offset(y, builder.mul(y_step, I64(number)))
        vec.store(pixel, place, align=1)


def _pack_short(tile: TransposeTile, vec: Vector, x: Any, x_step: Any, y: Any, y_step: Any, present: Any) -> None:
    """Transpose to pixels of fewer bytes; lines are read by vectors."""
    row = _row(vec, tile, x, x_step, present)
    count = _ordered(tile.groups)
    lines = [vec.load(row(min(number, tile.groups - 1)), align=1) for number in range(count)]
    made = [_kept(vec, tile, value, present) for value in interleaved(vec, tile.group_bytes, lines)]
    bytes_, here = tile.groups * tile.group_bytes, tile.each // count  # bytes per pixel; pixels per 16 bytes
    if count != tile.groups:
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


def _store_three(tile: TransposeTile, vec: Vector, made: list[Any], y: Any) -> None:
    """Store adjacent pixels of three groups out of four: 12 of 16 bytes, whose end the next 16 overwrite."""
    group_bytes, each = tile.group_bytes, tile.each
    order = [at for at in range(each) if at % 4 < 3]
    quarter = each // 4
    for number, value in enumerate(made):
        last = number == len(made) - 1
        if last:  # write nothing past the last pixel, but rewrite the last group of the one before
            before = made[number - 1]
            value = within_quads(vec, group_bytes, before, value, [*order[-quarter:], *(each + at for at in order)])
        else:
            value = within_quads(vec, group_bytes, value, value, [*order, *order[:quarter]])
        for at, part in enumerate(_parts(vec, value, QUAD)):
            _store(vec, part, vec.offset(y, at * 3 * QUAD + 12 * number - 4 * last))


def _pixels(tile: TransposeTile, vec: Vector, x: Any, x_step: Any, first: int, count: int) -> Any:
    """Load 16 bytes: the groups of `count` pixels."""
    quad, bytes_ = Vector(vec.builder, NARROW), tile.groups * tile.group_bytes
    if tile.dense:
        return quad.load(vec.offset(x, first * bytes_), align=1)
    kind = ir.VectorType(ir.IntType(8 * bytes_), count)
    value: Any = ir.Constant(kind, ir.Undefined)
    for at in range(count):
        place = vec.offset(x, vec.builder.mul(x_step, I64(first + at)))
        group = vec.builder.load(vec.builder.bitcast(place, kind.element.as_pointer()))
        group.align = 1
        value = vec.builder.insert_element(value, group, I64(at))
    return vec.builder.bitcast(value, quad.type)


def _unpacked(tile: TransposeTile, vec: Vector, x: Any, x_step: Any) -> list[Any]:
    """Transpose pixels to lines in registers."""
    quad, count = Vector(vec.builder, NARROW), _ordered(tile.groups)
    starts = range(0, tile.pixels, tile.each)
    if tile.wide:

        def wide(number: int) -> Any:
            places = [vec.offset(x, vec.builder.mul(x_step, I64(first + number))) for first in starts]
            return join(vec, [quad.load(place, align=1) for place in places])

        return interleaved(vec, tile.group_bytes, [wide(number) for number in range(tile.each)])
    together = tile.each // count  # pixels per 16 bytes
    lines = []
    for number in range(count):
        order = [pixel * tile.groups + min(at, tile.groups - 1) for at in range(count) for pixel in range(together)]
        if count != tile.groups:  # the last 12 bytes are read with those before, not past the end
            last = number == count - 1
            places = [vec.offset(x, first * 3 * tile.group_bytes + 12 * number - 4 * last) for first in starts]
            value = join(vec, [quad.load(place, align=1) for place in places])
            order = [at + 4 // tile.group_bytes * last for at in order]
        else:
            quads = [_pixels(tile, vec, x, x_step, first + number * together, together) for first in starts]
            value = join(vec, quads)
        lines.append(within_quads(vec, tile.group_bytes, value, value, order))
    return interleaved(vec, tile.group_bytes * together, lines)[: tile.groups]


@emitter
def _transpose(tile: Any, vec: Vector, x: Any, x_step: Any, y: Any, y_step: Any, present: Any) -> None:
    """Transpose a tile: `tile.groups` lines to `tile.pixels` pixels, or the reverse."""
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
            vec.store(vec.builder.select(there, line, lines[0]) if tile.partial else line, row(number), align=1)


def _packed(tile, x, line, x_pixel, y, y_pixel, y_line, present, pixels):
    for first in range(0, pixels, tile.pixels):
        at = min(first, pixels - tile.pixels)
        _transpose(tile, x + at * tile.group_bytes, line, y + at * y_pixel, y_pixel, present)


def _unpacked_lines(tile, x, x_line, x_pixel, y, y_pixel, line, present, pixels):
    for first in range(0, pixels, tile.pixels):
        at = min(first, pixels - tile.pixels)
        _transpose(tile, x + at * x_pixel, x_pixel, y + at * tile.group_bytes, line, present)


@specialise_on_tile(lambda tile: _packed if tile.packs else _unpacked_lines)
def _move(tile, x, x_line, x_pixel, y, y_pixel, y_line, present, pixels):
    """Move `pixels` pixels of `tile.groups` groups, of which the first `present` exist."""


def _no_partial(tile, args, x, y, number, pixels):
    pass


def _pack_partial(tile, args, x, y, number, pixels):
    source, target = x + args.groups * args.x_line, y + args.groups * args.y_line
    pack_partial(tile, source, args.x_pixel, target, args.y_pixel, args.end, False, pixels)


def _unpack_partial(tile, args, x, y, number, pixels):
    source, target = x + args.groups * args.x_line, y + args.groups * args.y_line
    unpack_partial(tile, source - args.x_line, source, args.x_pixel, target, args.y_pixel, args.end, False, pixels)


def _zero_fill(tile, args, x, y, number, pixels):
    if number == args.blocks - 1:
        last = args.groups - 1 - number * args.block
        keep_first(tile, y + last * args.y_line, args.y_pixel, args.end, pixels)


_PARTIAL_GROUPS = {
    NO_PARTIAL: _no_partial,
    PAD_ON_WRITE: _pack_partial,
    TRIM_ON_READ: _unpack_partial,
    ZERO_FILL: _zero_fill,
}


@specialise_on_tile(lambda tile: _PARTIAL_GROUPS[tile.partial_group])
def _partial_group(tile, args, x, y, number, pixels):
    """Move the last, partial group of `pixels` pixels."""


@kernel(
    "x y units strips strips_first blocks_first strip width rows blocks groups block stored end "
    "x_image x_h x_block x_line x_pixel y_image y_h y_block y_line y_pixel"
)
def transpose_groups(tile, worker, before, part, parts, args):
    """y = x in another layout.

    Units are numbered with the strip, or the block of `block` groups of a pixel, fastest, then the other, row and image
    (`strips_first`: number of strips if they are fastest, else 1). The last strip of a row takes the remainder. Groups
    from `groups` to `stored` are zero; a partial group has `end` bytes.
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
        there = min(args.block, args.groups - first)
        end = min(args.block, args.stored - first)
        at = 0
        while at < end:
            if not tile.partial:
                at = min(at, end - tile.groups)
            present = min(tile.groups, there - at)
            source, target = x + at * args.x_line, y + at * args.y_line
            _move(tile, source, args.x_line, args.x_pixel, target, args.y_pixel, args.y_line, present, pixels)
            at += tile.groups
        _partial_group(tile, args, x, y, number, pixels)
