"""Moves of activations in strips, where one view has contiguous channels or a block is longer than a vector.

With contiguous channels, pixels are often at distances at which they share few cache sets, or a single one. The
bundle of vectors and the strip length follow from how many of their cache lines can be open simultaneously.
"""

from __future__ import annotations

import math

from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.copies.movement import COSTS, LINE, OPEN, WAY, Image, count_l1_sets
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, PLANES, ROWS, RowTile
from cpuconv.kernels.copies.strips import VECTORS, StripTile, move_strips
from cpuconv.kernels.copies.views import row_tile, view_args
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import greatest, least, now
from layouts import Strides

_FEW = 2  # L1 sets: pixels that share no more evict each other, if as many as a vector's lanes are open
# pixels per strip: minimum if copied, maximum if transposed, and between blocks
_SHORTEST, _LONGEST, _STREAM = 16, 128, 512
COPIED = 4  # pixels whose vectors are copied together
_MANY = 16  # vectors of a pixel from which a partial bundle costs little
_CHUNK = 64  # pixels per pass through the buffer
_COST = COSTS.vector + 1  # more than plain loops, whose cache lines are not evicted
_NARROW_COST = COSTS.refetch  # of vectors narrower than the CPU's


def supports(image: Image) -> StripTile | None:
    """Select the tile for a movement; None between equal views, or where vectors of channels are contiguous in none."""
    source, target, channels, width = image.source, image.target, image.channels, image.width
    if source._replace(n=0) == target._replace(n=0) or any(view.block & view.block - 1 for view in (source, target)):
        return None
    for lanes in (each for each in (16, 8, 4) if each <= image.isa.lanes):
        read, written = (row_tile(lanes, view, image.element, channels) for view in (source, target))
        kinds = {read.kind, written.kind}
        if kinds <= {*VECTORS, ROWS, PLANES} and channels >= read.group:
            if kinds == {CHANNELS} or not kinds <= {*VECTORS} and (CHANNELS not in kinds or width < read.least):
                return None
            if kinds <= {*VECTORS}:
                return StripTile(lanes, read, written, _bundle(channels, read), COPIED)
            return _transposed(width, source, target, read, written)
    return None


def cost(image: Image) -> float:
    """Cycles per cache line."""
    tile = supports(image)
    if tile is None:
        return math.inf
    narrow = tile.kinds <= {*VECTORS} and tile.lanes < image.isa.lanes
    partial = CHANNELS in tile.kinds and image.channels % tile.target.each != 0
    return _COST + _NARROW_COST * narrow + COSTS.partial * partial


def bind(image: Image, tile: StripTile, space: Space) -> Step:
    """Make the call of the kernel."""
    channels, width, source, target = image.channels, image.width, image.source, image.target
    outer, threads = image.n * image.rows, image.threads
    strip = _strip(tile, source, target, width)
    strips = width // strip
    vectors = divide(divide(channels, target.block) * target.block, tile.group)
    spans = 1  # spans of the channels of a strip
    if CHANNELS not in tile.kinds:
        spans = vectors
    elif now(outer * strips) < 4 * threads > 4:
        spans = 4 * threads
    span = divide(divide(vectors, spans), tile.bundle) * tile.bundle
    spans = divide(vectors, span)
    through = channels % tile.group and BLOCKED not in tile.kinds
    args: Args = {
        "x": image.x,
        "y": image.y,
        **worker_args("buffer", space, _CHUNK * 4 * tile.lanes if through else 0, threads),
        "chunk": _CHUNK,
        "units": outer * strips * spans,
        "channels": channels,
        "whole": channels // tile.group,
        "vectors": vectors,
        "rows": image.rows,
        "strips": strips,
        "strip": strip,
        "spans": spans,
        "span": span,
        "width": width,
        **view_args("x", source),
        **view_args("y", target),
        **_bundle_args("x", source, tile.group),
        **_bundle_args("y", target, tile.group),
    }
    return Step(move_strips, tile, args)


def _bundle(channels: int, row: RowTile) -> int:
    """Vectors that are copied together: two cache lines, or one where the vectors of a pixel would not fill two."""
    line, whole = LINE // (4 * row.lanes), channels // row.group
    return min(4, 2 * line) if whole % (2 * line) == 0 or whole >= _MANY else line


def _transposed(width: int, source: Strides, target: Strides, read: RowTile, written: RowTile) -> StripTile:
    """Tile between planes and NHWC: bundles of one cache line of channels, if all planes' lines can be open; of two
    lines where pixels share sets."""
    packs = written.kind == CHANNELS
    planes, vectors = (source, target) if packs else (target, source)
    far = count_l1_sets(vectors.w) <= _FEW
    wanted = (2 if far else 1) * LINE // (4 * read.lanes)
    most = max(1, min(wanted, OPEN * count_l1_sets(planes.cb) // read.group))
    bundle = max(each for each in (1, 2, 4) if each <= most)
    if packs:
        pixels = read.least if read.bytes < 4 or far or width < 2 * read.least else 2 * read.least
    else:
        pixels = read.group if width >= read.group else read.least
    return StripTile(read.lanes, read, written, bundle, pixels)


def _strip(tile: StripTile, source: Strides, target: Strides, width: int) -> int:
    """Pixels per strip."""
    if tile.kinds == {BLOCKED}:
        return least(width, _STREAM)
    step = abs((source if tile.source.kind == CHANNELS else target).w)
    apart = count_l1_sets(step)
    if tile.kinds == {*VECTORS}:
        return least(width, OPEN * apart, greatest(_SHORTEST, WAY // step))
    halves = 4 * tile.lanes * tile.bundle < LINE
    if tile.target.kind == CHANNELS:
        return least(width, greatest(tile.pixels, 2 * OPEN * apart if halves else _LONGEST))
    return least(width, greatest(tile.pixels, _LONGEST if halves else _LONGEST // 2))


def _bundle_args(prefix: str, view: Strides, group: int) -> Args:
    """Byte distances between the vectors of a bundle, and the binary logarithm of a block's channels."""

    def place(number: int) -> int:
        blocks, within = divmod(number * group, view.block)
        return blocks * view.cb + within * view.c

    return {f"{prefix}_near": place(1), f"{prefix}_far": place(2), f"{prefix}_shift": view.block.bit_length() - 1}
