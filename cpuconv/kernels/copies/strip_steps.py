"""Reorders of activations, in strips where both views allow it and cache associativity requires it.

With contiguous channels, pixels are often at distances at which they share few cache sets, or a single one. The
bundle of vectors and the strip length follow from how many of their cache lines can be open simultaneously.
"""

from __future__ import annotations

import math

from cpuconv.elements import F32, Element
from cpuconv.following.sizes import greatest, least, now
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, Operand, Space, Step
from cpuconv.kernels.copies.reorder_steps import reorder_step
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, PLANES, ROWS, RowTile
from cpuconv.kernels.copies.strips import VECTORS, StripTile, move_strips
from cpuconv.kernels.copies.views import plane, row_tile, view_args
from cpuconv.problem.integers import divide
from layouts import Strides

_LINE = 64  # bytes of a cache line
_WAY = 4096  # bytes between cache lines that share an L1 set
_OPEN = 4  # lines of a set that may be open at a time: half of its ways, or fewer
_FEW = 2  # L1 sets: pixels that share no more evict each other, if as many as a vector's lanes are open
_CLOSE = 8  # L1 sets: where pixels have more, vectors narrower than the CPU's cost more than evictions
_KEPT = 64  # pixels per chunk of a reorder's loops, which move one vector of channels at a time
# pixels per strip: minimum if copied, maximum if transposed, and between blocks
_SHORTEST, _LONGEST, _STREAM = 16, 128, 512
COPIED = 4  # pixels whose vectors are copied together
_MANY = 16  # vectors of a pixel from which a partial bundle costs little
_CHUNK = 64  # pixels per pass through the buffer


def count_l1_sets(step: int) -> int:
    """Number of different L1 sets of addresses that are `step` bytes apart."""
    return min(_WAY // math.gcd(now(step), _WAY), _WAY // _LINE)


def move_step(
    isa: Isa,
    space: Space,
    shape_nchw: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    threads: int,
    element: Element = F32,
) -> Step:
    """Make a reorder step as `reorder_step` does, in strips where these are faster."""
    n, channels, height, width = shape_nchw
    rows, width, (source, target) = plane(height, width, x.strides, y.strides)
    tile = strip_tile(isa, channels, width, source, target, element)
    if tile is None:
        return reorder_step(isa, space, shape_nchw, x, y, threads, element)
    strip = _strip(tile, source, target, width)
    strips = width // strip
    vectors = divide(divide(channels, target.block) * target.block, tile.group)
    spans = 1  # spans of the channels of a strip
    if CHANNELS not in tile.kinds:
        spans = vectors
    elif now(n * rows * strips) < 4 * threads > 4:
        spans = 4 * threads
    span = divide(divide(vectors, spans), tile.bundle) * tile.bundle
    spans = divide(vectors, span)
    through = channels % tile.group and BLOCKED not in tile.kinds
    args: Args = {
        "x": x.ref,
        "y": y.ref,
        **worker_args("buffer", space, _CHUNK * 4 * tile.lanes if through else 0, threads),
        "chunk": _CHUNK,
        "units": n * rows * strips * spans,
        "channels": channels,
        "whole": channels // tile.group,
        "vectors": vectors,
        "rows": rows,
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


def strip_tile(
    isa: Isa, channels: int, width: int, source: Strides, target: Strides, element: Element
) -> StripTile | None:
    """Select the tile to move rows of `width` pixels between two views in strips; None where strips don't pay."""
    if source._replace(n=0) == target._replace(n=0) or any(view.block & view.block - 1 for view in (source, target)):
        return None
    for lanes in (each for each in (16, 8, 4) if each <= isa.lanes):
        read, written = (row_tile(lanes, view, element, channels) for view in (source, target))
        kinds = {read.kind, written.kind}
        if kinds <= {*VECTORS, ROWS, PLANES} and channels >= read.group:
            if kinds == {BLOCKED}:
                return _between_blocks(isa, channels, source, target, read, written)
            if CHANNELS not in kinds or len(kinds) == 1 or _fits_l1(source, read) and _fits_l1(target, written):
                return None
            apart = count_l1_sets((source if read.kind == CHANNELS else target).w)
            if kinds == {*VECTORS}:
                narrow = lanes < isa.lanes and apart > _CLOSE
                return None if narrow else StripTile(lanes, read, written, _bundle(channels, read), COPIED)
            if width < read.least or apart == _WAY // _LINE:
                return None
            return _transposed(width, source, target, read, written)
    return None


def _fits_l1(view: Strides, row: RowTile) -> bool:
    """Whether the cache lines of `_KEPT` pixels stay in L1 between two vectors of their channels."""
    return row.kind != CHANNELS or abs(view.w) * _KEPT < _OPEN * _WAY


def _between_blocks(
    isa: Isa, channels: int, source: Strides, target: Strides, read: RowTile, written: RowTile
) -> StripTile | None:
    """Tile between two blocked views. None for blocks of at most a vector: reorder loops write these sequentially."""
    if read.lanes < isa.lanes or max(source.block, target.block) == read.group:
        return None
    return StripTile(read.lanes, read, written, _bundle(channels, read), COPIED)


def _bundle(channels: int, row: RowTile) -> int:
    """Vectors that are copied together: two cache lines, or one where the vectors of a pixel would not fill two."""
    line, whole = _LINE // (4 * row.lanes), channels // row.group
    return min(4, 2 * line) if whole % (2 * line) == 0 or whole >= _MANY else line


def _transposed(width: int, source: Strides, target: Strides, read: RowTile, written: RowTile) -> StripTile:
    """Tile between planes and NHWC: bundles of one cache line of channels, if all planes' lines can be open; of two
    lines where pixels share sets."""
    packs = written.kind == CHANNELS
    planes, vectors = (source, target) if packs else (target, source)
    far = count_l1_sets(vectors.w) <= _FEW
    wanted = (2 if far else 1) * _LINE // (4 * read.lanes)
    most = max(1, min(wanted, _OPEN * count_l1_sets(planes.cb) // read.group))
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
        return least(width, _OPEN * apart, greatest(_SHORTEST, _WAY // step))
    halves = 4 * tile.lanes * tile.bundle < _LINE
    if tile.target.kind == CHANNELS:
        return least(width, greatest(tile.pixels, 2 * _OPEN * apart if halves else _LONGEST))
    return least(width, greatest(tile.pixels, _LONGEST if halves else _LONGEST // 2))


def _bundle_args(prefix: str, view: Strides, group: int) -> Args:
    """Byte distances between the vectors of a bundle, and the binary logarithm of a block's channels."""

    def place(number: int) -> int:
        blocks, within = divmod(number * group, view.block)
        return blocks * view.cb + within * view.c

    return {f"{prefix}_near": place(1), f"{prefix}_far": place(2), f"{prefix}_shift": view.block.bit_length() - 1}
