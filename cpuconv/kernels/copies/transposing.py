"""Reorders by register transposes of channel groups, where the views allow, with the selection of tiles.

A channel group is the channels that are adjacent in both layouts, 1 to 8 bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from cpuconv.elements import F32, Element
from cpuconv.following.sizes import applied
from cpuconv.isa import Isa
from cpuconv.kernels.binding.steps import Args, Operand, Ref, Space, Step
from cpuconv.kernels.channel_groups.pixels import PixelTile, move_pixels
from cpuconv.kernels.channel_groups.transpose_groups import (
    NO_PARTIAL,
    PAD_ON_WRITE,
    TRIM_ON_READ,
    ZERO_FILL,
    TransposeTile,
    transpose_groups,
)
from cpuconv.kernels.copies.strip_steps import count_l1_sets, move_step
from cpuconv.kernels.copies.views import plane
from cpuconv.kernels.emit.interleave import QUAD
from cpuconv.problem.integers import divide
from layouts import Strides

_GROUP_BYTES = (1, 2, 4, 8)  # bytes of a channel group
_OPEN = 4  # cache lines of an L1 set that may be open at a time
_FEW = 8  # L1 sets: where pixels share no more, strips of vector bundles keep fewer lines open
_STREAM = 512  # pixels per strip of blocks
_WORD, _PIXELS = 8, 16  # bytes per move of a pixel's partial group; minimum row of pixels shorter than that
_PARTS = 4  # minimum units of work per thread
_STRIP = 64  # maximum pixels whose channels are copied block by block
_THREE = 3  # channel groups of a pixel that are moved together, like four


class _View(NamedTuple):
    """A side of a reorder: adjacent channels, whether they are all channels, and bytes between pixels."""

    together: int
    all: bool
    pixel: int


def transpose_step(
    isa: Isa,
    space: Space,
    shape_nchw: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    threads: int,
    element: Element = F32,
) -> Step:
    """Make a reorder step as `move_step` does, by transposes of channel groups where these are faster."""
    n, channels, height, width = shape_nchw
    rows, width, (source, target) = plane(height, width, x.strides, y.strides)
    read, written = (_view(view, channels, element.bytes) for view in (source, target))
    if read is None or written is None:
        return move_step(isa, space, shape_nchw, x, y, threads, element)
    tile = transpose_tile(isa, channels, width, read, written, element)
    if tile is None:
        if _ends_within_words(channels, width, read, written, element):
            return _pixel_step(isa, n, channels, rows, width, (x.ref, source), (y.ref, target), threads, element)
        return move_step(isa, space, shape_nchw, x, y, threads, element)
    fine, coarse = (read, written) if tile.packs else (written, read)
    groups = _groups(channels, fine, coarse)
    block = coarse.together // fine.together
    blocks = 1 if coarse.all else divide(groups, block)
    longest = _OPEN * count_l1_sets(coarse.pixel) if coarse.all else _STREAM
    strip = applied(_strip, width, tile.pixels, longest, n * rows * blocks, threads)
    strips = width // strip
    lines, pixels = (source, target) if tile.packs else (target, source)
    of_lines = {"image": lines.n, "h": lines.h, "block": block * lines.cb, "line": lines.cb, "pixel": tile.group_bytes}
    across = 0 if coarse.all else pixels.cb
    of_pixels = {"image": pixels.n, "h": pixels.h, "block": across, "line": tile.group_bytes, "pixel": pixels.w}
    xs, ys = (of_lines, of_pixels) if tile.packs else (of_pixels, of_lines)
    args: Args = {
        "x": x.ref,
        "y": y.ref,
        "units": n * rows * strips * blocks,
        "strips": strips,
        "strips_first": 1 if coarse.all else strips,
        "blocks_first": blocks if coarse.all else 1,
        "strip": strip,
        "width": width,
        "rows": rows,
        "blocks": blocks,
        "groups": groups,
        "block": block,
        "stored": blocks * block if tile.packs and not coarse.all else groups,
        "end": channels % fine.together * element.bytes,
        **{f"x_{name}": step for name, step in xs.items()},
        **{f"y_{name}": step for name, step in ys.items()},
    }
    return Step(transpose_groups, tile, args)


def _view(view: Strides, channels: int, size: int) -> _View | None:
    """Describe a view; None for other orders of channels or pixels."""
    if view.block > 1:
        return _View(view.block, False, view.w) if view.c == size and not view.block & view.block - 1 else None
    if view.w == size:
        return _View(1, False, size)
    return _View(channels, True, view.w) if view.cb == size else None


def _ends_within_words(channels: int, width: int, read: _View, written: _View, element: Element) -> bool:
    """Whether one view is NHWC with pixels that do not fill 32-bit groups, and the other has blocks longer than them or
    of at least 16 bytes."""
    fine, coarse = (read, written) if written.all else (written, read)
    bytes_ = channels * element.bytes
    block = fine.together * element.bytes
    if fine.all or not coarse.all or bytes_ % 4 == 0 or block < 4 or bytes_ > block < QUAD:
        return False
    return bytes_ >= _WORD or width >= _PIXELS and coarse.pixel > 0


def _pixel_step(
    isa: Isa,
    n: int,
    channels: int,
    rows: int,
    width: int,
    read: tuple[Ref, Strides],
    written: tuple[Ref, Strides],
    threads: int,
    element: Element,
) -> Step:
    """Make the step for pixels of `_ends_within_words`."""
    (x, source), (y, target) = read, written
    packs = target.block > 1
    block = (target if packs else source).block * element.bytes
    bytes_ = channels * element.bytes
    word = min(_WORD, block)
    blocks, strip = divide(bytes_, block), applied(_strip, width, _PIXELS, _STRIP, n * rows, threads)
    across = {"x": block if packs else source.cb, "y": target.cb if packs else block}
    args: Args = {
        "x": x,
        "y": y,
        "units": n * rows * (width // strip),
        "strips": width // strip,
        "strip": strip,
        "width": width,
        "rows": rows,
        "blocks": blocks,
        "block": block,
        "end": bytes_ - (blocks - 1) * block,
        "alone": int(bytes_ < word),
    }
    for prefix, view in (("x", source), ("y", target)):
        steps = {"image": view.n, "h": view.h, "block": across[prefix], "pixel": view.w}
        args |= {f"{prefix}_{name}": step for name, step in steps.items()}
    return Step(move_pixels, PixelTile(min(isa.lanes, max(4, block // 4)), packs, word), args)


def _strip(width: int, least: int, most: int, others: int, threads: int) -> int:
    """Pixels per strip, so few that all threads get enough units; `others`: units per strip of a row."""
    parts = divide(_PARTS * threads, max(1, others)) if threads > 1 else 1
    return min(width, max(least, min(most, width // parts)))


def _groups(channels: int, fine: _View, coarse: _View) -> int:
    """Channel groups that are moved whole."""
    return channels // fine.together if coarse.all else divide(channels, fine.together)


def transpose_tile(
    isa: Isa, channels: int, width: int, read: _View, written: _View, element: Element
) -> TransposeTile | None:
    """Select the tile to transpose between two views of rows of `width` pixels; None if no tile fits or pays."""
    packs = read.together < written.together
    fine, coarse = (read, written) if packs else (written, read)
    size = fine.together * element.bytes
    if element.bytes == 4 or coarse.all and count_l1_sets(coarse.pixel) <= _FEW:
        return None
    if size not in _GROUP_BYTES or fine.pixel != size or fine.together == coarse.together:
        return None
    partial_group, block = NO_PARTIAL, coarse.together // fine.together
    groups = _groups(channels, fine, coarse)
    if channels % fine.together:
        partial_group = ZERO_FILL if not coarse.all else TRIM_ON_READ if packs else PAD_ON_WRITE
    if packs and not coarse.all and block * size >= QUAD:  # reorder loops fill long blocks as fast
        return None
    bytes_ = min(block * size, 4 * isa.lanes if packs else QUAD)
    at_once = 1 << (bytes_ // size).bit_length() - 1
    if block == _THREE and coarse.pixel == _THREE * size < QUAD:
        at_once = _THREE
    partial = not coarse.all and groups % (block if packs else at_once) != 0
    dense = at_once * size == coarse.pixel < QUAD
    for lanes in (each for each in (16, 8, 4) if each <= isa.lanes):
        tile = TransposeTile(lanes, size, at_once, packs, dense, partial, partial_group)
        if width >= tile.pixels:
            return tile
    return None
