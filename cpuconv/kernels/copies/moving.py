"""Moves of activations between layouts: in strips where both views allow, else as reorders do.

Which strips, and how much of a pixel is moved at once, follows from how many cache lines are open in one set.
"""

from __future__ import annotations

import math

from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, Operand, Space, Step
from cpuconv.kernels.copies.reordering import reorder_step
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, PLANES, ROWS, RowTile
from cpuconv.kernels.copies.strips import VECTORS, StripTile, move_strips
from cpuconv.kernels.copies.views import plane, row_tile, view_args
from cpuconv.problem.integers import divide
from layouts import Strides

_LINE = 64  # bytes of a cache line
_WAY = 4096  # bytes after which lines share a set of the first cache
_OPEN = 4  # lines of a set that are open at a time: half of its ways, or fewer
_FEW = 2  # sets that pixels lie in, so that lines of more pixels drive each other out
_LONGEST = 128  # pixels of a strip
_CHUNK = 64  # pixels that pass through the buffer at once


def lines_apart(step: int) -> int:
    """How many places `step` bytes apart lie in lines of different sets, one after the other."""
    return min(_WAY // math.gcd(step, _WAY), _WAY // _LINE)


def move_step(
    isa: Isa,
    space: Space,
    shape_nchw: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    threads: int,
    element: Element = F32,
) -> Step:
    """`reorder_step`, in strips where they serve."""
    n, channels, height, width = shape_nchw
    rows, width, (source, target) = plane(height, width, x.strides, y.strides)
    tile = _tile(isa, channels, width, source, target, element)
    if tile is None:
        return reorder_step(isa, space, shape_nchw, x, y, threads, element)
    strip = _strip(tile, source, target, width)
    strips = max(1, width // strip)
    vectors = divide(divide(channels, target.block) * target.block, tile.group)
    spans, span = 1, vectors
    if CHANNELS not in (tile.source.kind, tile.target.kind) or n * rows * strips < 4 * threads > 4:
        wanted = vectors if CHANNELS not in (tile.source.kind, tile.target.kind) else 4 * threads
        span = divide(divide(vectors, wanted), tile.bundle) * tile.bundle
        spans = divide(vectors, span)
    through = tile.target.kind != BLOCKED != tile.source.kind and channels % tile.group
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


def _tile(
    isa: Isa, channels: int, width: int, source: Strides, target: Strides, element: Element
) -> StripTile | None:
    """The loops that move such views, if strips serve them."""
    if source._replace(n=0) == target._replace(n=0) or any(view.block & view.block - 1 for view in (source, target)):
        return None
    for lanes in (each for each in (16, 8, 4) if each <= isa.lanes):
        read, written = (row_tile(lanes, view, element, channels) for view in (source, target))
        kinds = read.kind, written.kind
        if not {*kinds} <= {*VECTORS, ROWS, PLANES} or channels < read.group:
            continue
        packs, unpacks = (kind in VECTORS and other not in VECTORS for kind, other in (kinds[::-1], kinds))
        if not (packs or unpacks):
            if {*kinds} in ({CHANNELS}, {ROWS}, {PLANES}):
                return None
            return StripTile(lanes, read, written, min(4, 2 * _LINE // (4 * lanes)), 4)
        if width < 16 // element.bytes or CHANNELS not in kinds:
            return None
        planes, vectors = (source, target) if packs else (target, source)
        far = lines_apart(vectors.w) <= _FEW
        most = (2 if far else 1) * _LINE // (4 * lanes), max(1, _OPEN * lines_apart(planes.cb) // read.group)
        bundle = max(each for each in (1, 2, 4) if each <= max(1, min(most)))
        return StripTile(lanes, read, written, bundle, _pixels(read, width, packs, far))
    return None


def _pixels(tile: RowTile, width: int, packs: bool, far: bool) -> int:
    """Pixels that are transposed at once, of vectors that lie `far` apart or not."""
    if packs:
        return tile.least if tile.bytes < 4 or far or width < 8 else 8
    return tile.group if width >= tile.group else tile.least


def _strip(tile: StripTile, source: Strides, target: Strides, width: int) -> int:
    """Pixels of a strip."""
    steps = [view.w for view, row in ((source, tile.source), (target, tile.target)) if row.kind in VECTORS]
    open_ = _OPEN * min(lines_apart(step) for step in steps)
    if len(steps) == 2:
        longest = min(open_, 8) if CHANNELS in (tile.source.kind, tile.target.kind) else 512
    else:
        halves = tile.target.kind in VECTORS and 4 * tile.lanes * tile.bundle < _LINE
        longest = 2 * open_ if halves else _LONGEST
    return min(width, max(tile.pixels, longest))


def _bundle_args(prefix: str, view: Strides, group: int) -> Args:
    """How far apart the vectors of a bundle lie, and the exponent of two that a block's channels are."""

    def place(number: int) -> int:
        blocks, within = divmod(number * group, view.block)
        return blocks * view.cb + within * view.c

    return {f"{prefix}_near": place(1), f"{prefix}_far": place(2), f"{prefix}_shift": view.block.bit_length() - 1}
