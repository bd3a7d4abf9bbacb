"""Moves of one- and two-byte elements by register transposes of channel groups, where the views allow.

A channel group is the channels that are adjacent in both layouts, 1 to 8 bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from cpuconv.elements import F32
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.copies.movement import COSTS, FEW_SETS, OPEN, Image, count_l1_sets
from cpuconv.kernels.copies.transpose_groups import (
    NO_PARTIAL,
    PAD_ON_WRITE,
    TRIM_ON_READ,
    ZERO_FILL,
    TransposeTile,
    transpose_groups,
)
from cpuconv.kernels.emit.interleave import QUAD
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import applied
from layouts import Strides

_GROUP_BYTES = (1, 2, 4, 8)  # bytes of a channel group
_STREAM = 512  # pixels per strip of blocks
_PARTS = 4  # minimum units of work per thread
_THREE = 3  # channel groups of a pixel that are moved together, like four
_COST = COSTS.vector - 0.5
_EVICTED_COST = 1.5 * COSTS.evicted  # with few sets; strips of bundles keep fewer cache lines open


class View(NamedTuple):
    """A side of a reorder: adjacent channels, whether they are all channels, and bytes between pixels."""

    together: int
    all: bool
    pixel: int


def views_of(image: Image) -> tuple[View, View]:
    """Describe both views; those with other orders of channels or pixels have no adjacent channels."""
    read, written = (_view(view, image.channels, image.size) for view in (image.source, image.target))
    return read, written


def _view(view: Strides, channels: int, size: int) -> View:
    if view.block > 1:
        adjacent = view.c == size and not view.block & view.block - 1
        return View(view.block if adjacent else 0, False, view.w)
    if view.w == size:
        return View(1, False, size)
    return View(channels, True, view.w) if view.cb == size else View(0, False, view.w)


def pixels_per_strip(width: int, least: int, most: int, others: int, threads: int) -> int:
    """Pixels per strip, so few that all threads get enough units; `others`: units per strip of a row."""
    parts = divide(_PARTS * threads, max(1, others)) if threads > 1 else 1
    return min(width, max(least, min(most, width // parts)))


def _groups(channels: int, fine: View, coarse: View) -> int:
    """Channel groups that are moved whole."""
    return channels // fine.together if coarse.all else divide(channels, fine.together)


def supports(image: Image) -> TransposeTile | None:
    """Select the tile for a movement; None if no tile fits, or for elements of four bytes."""
    size = image.size
    read, written = views_of(image)
    packs = read.together < written.together
    fine, coarse = (read, written) if packs else (written, read)
    group_bytes = fine.together * size
    if group_bytes not in _GROUP_BYTES or fine.pixel != group_bytes or fine.together == coarse.together:
        return None
    if size == F32.bytes or packs and not coarse.all and coarse.together * size >= QUAD:  # plain loops are as fast
        return None
    partial_group, block = NO_PARTIAL, coarse.together // fine.together
    groups = _groups(image.channels, fine, coarse)
    if image.channels % fine.together:
        partial_group = ZERO_FILL if not coarse.all else TRIM_ON_READ if packs else PAD_ON_WRITE
    bytes_ = min(block * group_bytes, 4 * image.isa.lanes if packs else QUAD)
    at_once = 1 << (bytes_ // group_bytes).bit_length() - 1
    if block == _THREE and coarse.pixel == _THREE * group_bytes < QUAD:
        at_once = _THREE
    partial = not coarse.all and groups % (block if packs else at_once) != 0
    dense = at_once * group_bytes == coarse.pixel < QUAD
    for lanes in (each for each in (16, 8, 4) if each <= image.isa.lanes):
        tile = TransposeTile(lanes, group_bytes, at_once, packs, dense, partial, partial_group)
        if image.width >= tile.pixels:
            return tile
    return None


def cost(image: Image) -> float:
    """Cycles per cache line."""
    read, written = views_of(image)
    coarse = written if read.together < written.together else read
    return _COST + _EVICTED_COST * (coarse.all and count_l1_sets(coarse.pixel) <= FEW_SETS)


def bind(image: Image, tile: TransposeTile, space: Space) -> Step:
    """Make the call of the kernel."""
    channels, width, outer = image.channels, image.width, image.n * image.rows
    read, written = views_of(image)
    fine, coarse = (read, written) if tile.packs else (written, read)
    groups = _groups(channels, fine, coarse)
    block = coarse.together // fine.together
    blocks = 1 if coarse.all else divide(groups, block)
    longest = OPEN * count_l1_sets(coarse.pixel) if coarse.all else _STREAM
    strip = applied(pixels_per_strip, width, tile.pixels, longest, outer * blocks, image.threads)
    strips = width // strip
    lines, pixels = (image.source, image.target) if tile.packs else (image.target, image.source)
    of_lines = {"image": lines.n, "h": lines.h, "block": block * lines.cb, "line": lines.cb, "pixel": tile.group_bytes}
    across = 0 if coarse.all else pixels.cb
    of_pixels = {"image": pixels.n, "h": pixels.h, "block": across, "line": tile.group_bytes, "pixel": pixels.w}
    xs, ys = (of_lines, of_pixels) if tile.packs else (of_pixels, of_lines)
    args: Args = {
        "x": image.x,
        "y": image.y,
        "units": outer * strips * blocks,
        "strips": strips,
        "strips_first": 1 if coarse.all else strips,
        "blocks_first": blocks if coarse.all else 1,
        "strip": strip,
        "width": width,
        "rows": image.rows,
        "blocks": blocks,
        "groups": groups,
        "block": block,
        "stored": blocks * block if tile.packs and not coarse.all else groups,
        "end": channels % fine.together * image.size,
        **{f"x_{name}": step for name, step in xs.items()},
        **{f"y_{name}": step for name, step in ys.items()},
    }
    return Step(transpose_groups, tile, args)
