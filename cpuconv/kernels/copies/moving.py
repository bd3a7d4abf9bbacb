"""Moves of activations between layouts: in strips where both views allow, else as reorders do.

Which strips, and how much of a pixel is moved at once, follows from how many cache lines are open in one set.
"""

from __future__ import annotations

import math
import os

from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, Operand, Space, Step
from cpuconv.kernels.copies.reordering import reorder_step
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, PLANES, ROWS
from cpuconv.kernels.copies.strips import VECTORS, StripTile, move_strips
from cpuconv.kernels.copies.views import plane, row_tile, view_args
from cpuconv.problem.integers import divide
from layouts import Strides

_LINE = 64  # bytes of a cache line
_WAY = 4096  # bytes after which lines share a set of the first cache
_OPEN = 4  # lines of a set that are open at a time: half of its ways, or fewer
_LONGEST = 256  # pixels of a strip
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
            return StripTile(lanes, read, written, _LINE // (4 * lanes), 1)
        if width < 16 // element.bytes:
            return None
        pixels = 16 // element.bytes
        planes, vectors = (source, target) if packs else (target, source)
        bundle = 1
        if CHANNELS in kinds:
            bundle = int(os.environ.get("B", 0)) or max(
                each
                for each in (1, 2, 4)
                if each == 1 or each * read.group <= 8 * lines_apart(planes.cb) and each * lanes <= 32
            )
        if unpacks and element.bytes == 4 and 8 <= 2 * lines_apart(vectors.w) and width >= lanes:
            pixels = lanes
        if unpacks and element.bytes < 4 and width >= read.group:
            pixels = read.group
        pixels = int(os.environ.get("X", 0)) or pixels
        return StripTile(lanes, read, written, bundle, pixels)
    return None


def _strip(tile: StripTile, source: Strides, target: Strides, width: int) -> int:
    """Pixels of a strip."""
    longest = _OPEN * min(lines_apart(source.w), lines_apart(target.w)) if tile.pixels == 1 else _LONGEST
    if tile.pixels > 1 and CHANNELS in (tile.source.kind, tile.target.kind) and 4 * tile.lanes * tile.bundle < _LINE:
        vectors = source if tile.source.kind == CHANNELS else target
        longest = 2 * _OPEN * lines_apart(vectors.w)
    if CHANNELS not in (tile.source.kind, tile.target.kind):
        longest = 512
    longest = int(os.environ.get("P", 0)) or longest
    return min(width, max(tile.pixels, longest))


def _bundle_args(prefix: str, view: Strides, group: int) -> Args:
    """How far apart the vectors of a bundle lie, and the exponent of two that a block's channels are."""

    def place(number: int) -> int:
        blocks, within = divmod(number * group, view.block)
        return blocks * view.cb + within * view.c

    return {f"{prefix}_near": place(1), f"{prefix}_far": place(2), f"{prefix}_shift": view.block.bit_length() - 1}
