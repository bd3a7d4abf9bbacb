"""Reorders bound to memory: the loops that move an activation between two views, and how the work is cut."""

from __future__ import annotations

from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, Operand, Space, Step
from cpuconv.kernels.copies.reorder import BOTH, LINES, PACK, UNPACK, ReorderTile, reorder
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, ROWS, RowTile
from cpuconv.kernels.copies.views import plane, row_tile, view_args
from cpuconv.problem.integers import divide
from layouts import Strides

_CHUNK, _CHUNK_OF_ALL_CHANNELS = 512, 64  # pixels of a unit: long streams; where groups pass in turn, fewer pages


def _lanes(isa: Isa, channels: int, *views: Strides) -> int:
    """Lanes of a vector: the channels that either view has side by side, at most those of the instruction set."""
    together = max(view.block if view.block > 1 else channels if view.cb == F32.bytes else 0 for view in views)
    wanted = min(isa.lanes, together or isa.lanes)
    return next((lanes for lanes in (4, 8) if wanted <= lanes < isa.lanes), isa.lanes)


def _mode(source: RowTile, target: RowTile, block: int) -> tuple[int, bool]:
    """Which loops are needed for a target of that block, and whether those of the last channels are the same."""
    if source.kind == target.kind == ROWS:
        return LINES, True
    if target.kind == BLOCKED:
        return PACK, True
    if source.kind == BLOCKED:
        return UNPACK, block == 1  # a source's tail lanes need not be zero, a target's must
    if target.kind == CHANNELS:
        return PACK, False
    if source.kind == CHANNELS:
        return UNPACK, False
    return BOTH, True


def _same(channels: int, width: int, source: Strides, target: Strides) -> int:
    """Floats of an image where both views have them in the same order, without gaps; else 0."""
    axes = ((target.c, target.block), (target.cb, channels // target.block), (target.w, width))
    step = F32.bytes
    for stride, count in sorted(axis for axis in axes if axis[1] > 1):
        if stride != step:
            return 0
        step *= count
    together = source._replace(n=0, h=0) == target._replace(n=0, h=0) and channels % target.block == 0
    return step // F32.bytes if together else 0


def _spare(mode: int, lanes: int, channels: int, source: Strides, target: Strides) -> int | None:
    """Pixels at the end of a chunk whose last vector of channels would reach past the chunk; None: all of them.

    A vector may be read past its pixel where the excess is dropped. It may be written past its pixel where the pixels
    that follow are written later: those of a single group, without gaps.
    """
    view = source if mode == UNPACK else target
    alone = channels <= lanes and view.w == channels * F32.bytes
    if view.w <= 0 or not (target.block == 1 if mode == UNPACK else alone):
        return None
    return divide((-channels % lanes) * F32.bytes, view.w)


def reorder_step(
    isa: Isa, space: Space, shape_nchw: tuple[int, int, int, int], x: Operand, y: Operand, threads: int
) -> Step:
    """One parallel call that moves the logical (N, C, H, W) activation `x` to `y`; tail channels of `y` are zero."""
    n, channels, h, w = shape_nchw
    rows, width, (source, target) = plane(h, w, x.strides, y.strides)
    if rows == 1 and (size := _same(channels, width, source, target)):
        channels, width, source = 1, size, Strides(source.n, 1, 0, 0, 0, F32.bytes)
        target = source._replace(n=target.n)
    lanes = _lanes(isa, channels, source, target)
    read, written = row_tile(lanes, source), row_tile(lanes, target)
    stored = divide(channels, target.block) * target.block
    mode, parts = _mode(read, written, target.block)
    by_pixel = CHANNELS in (read.kind, written.kind)  # the groups of a pixel share its cache lines and page
    chunk = min(_CHUNK_OF_ALL_CHANNELS if by_pixel else _CHUNK, width)
    groups, chunks = divide(stored, lanes), divide(width, chunk)
    spare = _spare(mode, lanes, channels, source, target)
    buffer_step = chunk * lanes * F32.bytes if mode == BOTH or not parts else 0
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
