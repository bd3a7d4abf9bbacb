"""Reorder steps: bind the loops that move an activation between two views to memory, and partition the work."""

from __future__ import annotations

from cpuconv.elements import F32, Element
from cpuconv.following.sizes import least
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, Operand, Space, Step
from cpuconv.kernels.copies.reorder import BOTH, LINES, PACK, UNPACK, ReorderTile, reorder
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, PLANES, ROWS, WORDS, RowTile
from cpuconv.kernels.copies.views import plane, row_tile, view_args
from cpuconv.problem.integers import divide
from layouts import Strides

# Pixels per unit, or 32-bit words of a line: long streams; fewer pages, where vectors of channels alternate.
_CHUNK, _CHUNK_OF_ALL_CHANNELS = 512, 64


def _lanes(isa: Isa, channels: int, element: Element, *views: Strides) -> int:
    """32-bit lanes per vector: those that either view has adjacent, at most those of the instruction set."""
    together = max(view.block if view.block > 1 else channels if view.cb == element.bytes else 0 for view in views)
    wanted = min(isa.lanes, divide(together * element.bytes, 4) or isa.lanes)
    return next((lanes for lanes in (4, 8) if wanted <= lanes < isa.lanes), isa.lanes)


def _mode(source: RowTile, target: RowTile, block: int, whole: bool) -> tuple[int, bool]:
    """Select the mode for a target of block size `block`, and whether partial vectors need no buffer.

    `whole`: the channels of a pixel fill 32-bit groups.
    """
    if source.kind == target.kind and (target.kind in (ROWS, PLANES) or target.kind == WORDS and whole):
        return LINES, True
    if target.kind == BLOCKED:
        return PACK, True
    if source.kind == BLOCKED:
        return UNPACK, block == 1  # tail lanes of a source need not be zero, those of a target must
    if target.kind == CHANNELS:
        return PACK, False
    if source.kind == CHANNELS:
        return UNPACK, False
    return BOTH, True


def _same(channels: int, width: int, source: Strides, target: Strides, size: int) -> int:
    """Elements per image if both views are contiguous in the same order; else 0."""
    axes = ((target.c, target.block), (target.cb, channels // target.block), (target.w, width))
    step = size
    for stride, count in sorted(axis for axis in axes if axis[1] > 1):
        if stride != step:
            return 0
        step *= count
    together = source._replace(n=0, h=0) == target._replace(n=0, h=0) and channels % target.block == 0
    return step // size if together else 0


def _spare(mode: int, tile: RowTile, channels: int, source: Strides, target: Strides) -> int | None:
    """Pixels at the end of a chunk whose last vector of channels would reach past the chunk; None: all of them.

    A vector may be read past its pixel where the excess is dropped. It may be written past its pixel where the next
    pixels are written later: those of a single group, without gaps.
    """
    view = source if mode == UNPACK else target
    alone = channels <= tile.group and view.w == channels * tile.bytes
    if view.w <= 0 or not (target.block == 1 if mode == UNPACK else alone):
        return None
    return divide((-channels % tile.group) * tile.bytes, view.w)


def reorder_step(
    isa: Isa,
    space: Space,
    shape_nchw: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    threads: int,
    element: Element = F32,
) -> Step:
    """Make one parallel call that reorders the (N, C, H, W) activation `x` to `y`; tail channels of `y` are zero."""
    n, channels, h, w = shape_nchw
    rows, width, (source, target) = plane(h, w, x.strides, y.strides)
    if rows == 1 and (count := _same(channels, width, source, target, element.bytes)):
        channels, width, source = 1, count, Strides(source.n, 1, 0, 0, 0, element.bytes)
        target = source._replace(n=target.n)
    lanes = _lanes(isa, channels, element, source, target)
    read, written = (row_tile(lanes, view, element, channels) for view in (source, target))
    stored = divide(channels, target.block) * target.block
    mode, parts = _mode(read, written, target.block, channels % written.each == 0)
    by_pixel = CHANNELS in (read.kind, written.kind)  # the groups of a pixel share its cache lines and page
    chunk = _CHUNK_OF_ALL_CHANNELS if by_pixel else _CHUNK
    chunk = least(width, chunk * 4 // element.bytes if mode == LINES and written.kind == PLANES else chunk)
    groups, chunks = divide(stored, written.group), divide(width, chunk)
    spare = _spare(mode, written, channels, source, target)
    buffer_step = chunk * 4 * lanes if mode == BOTH or not parts else 0
    args: Args = {
        "x": x.ref,
        "y": y.ref,
        **worker_args("buffer", space, buffer_step, threads),
        "units": n * groups * rows * chunks,
        "channels": channels,
        "stored": stored,
        "groups": groups,
        "rows": rows,
        "chunks": chunks,
        "by_pixel": int(by_pixel),
        "chunk": chunk,
        "spare": width if spare is None else spare,
        "width": width,
        **view_args("x", source),
        **view_args("y", target),
    }
    return Step(reorder, ReorderTile(lanes, read, written, mode, parts), args)
