"""Reorders bound to memory: which loops move an activation between two views, and how the work is cut."""

from __future__ import annotations

from cpuconv.isa import Isa
from cpuconv.micro.reorder import BOTH, LINES, PACK, UNPACK, ReorderTile, reorder
from cpuconv.micro.rows import BLOCKED, CHANNELS, ROWS, RowTile, kind_of
from cpuconv.solvers.base import FLOAT, Operand, Space, Step, divide, view_args
from layouts import Strides

_CHUNK, _CHUNK_OF_ALL_CHANNELS = 256, 64  # pixels of a unit: long streams; where groups pass in turn, fewer pages


def plane(height: int, width: int, *views: Strides) -> tuple[int, int, tuple[Strides, ...]]:
    """Height, width and strides of the same plane with as few rows as the views allow."""
    if width == 1:
        return 1, height, tuple(view._replace(w=view.h) for view in views)
    if height == 1 or all(view.h == width * view.w for view in views):
        return 1, height * width, views
    return height, width, views


def row_tile(isa: Isa, view: Strides) -> RowTile:
    """The row loops for a view."""
    return RowTile(isa.lanes, kind_of(isa.lanes, view.block, view.cb, view.c, view.w))


def _is_blocked_row(isa: Isa, tile: RowTile, view: Strides) -> bool:
    return tile.kind == BLOCKED and view.w == isa.lanes * FLOAT


def reorder_step(
    isa: Isa, space: Space, shape_nchw: tuple[int, int, int, int], x: Operand, y: Operand, threads: int
) -> Step:
    """One parallel call that moves the logical (N, C, H, W) activation `x` to `y`; tail channels of `y` are zero."""
    n, channels, h, w = shape_nchw
    lanes = isa.lanes
    rows, width, (source, target) = plane(h, w, x.strides, y.strides)
    kinds = row_tile(isa, source), row_tile(isa, target)
    stored = divide(channels, target.block) * target.block
    if kinds[0].kind == kinds[1].kind == ROWS:
        mode = LINES
    elif _is_blocked_row(isa, kinds[1], target):
        mode = PACK
    elif _is_blocked_row(isa, kinds[0], source) and stored == channels:
        mode = UNPACK  # a source's tail lanes need not be zero: targets with tails get them masked, by packing
    else:
        mode = BOTH
    by_pixel = CHANNELS in (kinds[0].kind, kinds[1].kind)
    chunk = min(_CHUNK_OF_ALL_CHANNELS if by_pixel else _CHUNK, width)
    sizes = {"group": divide(stored, lanes), "row": rows, "chunk": divide(width, chunk)}
    inner_first = ("chunk", "row", "group")
    if by_pixel:  # the groups of a pixel share its cache lines and page
        inner_first = ("group", "chunk", "row")
    steps, step = {}, 1
    for name in inner_first:
        steps[name] = step
        step *= sizes[name]
    buffer_step = chunk * lanes * FLOAT
    args = {
        "x": x.ref,
        "y": y.ref,
        "buffer": space.reserve(buffer_step * threads) if mode == BOTH else 0,
        "buffer_step": buffer_step,
        "units": n * step,
        "x_image": source.n,
        "y_image": target.n,
        "channels": channels,
        "stored": stored,
        "groups": sizes["group"],
        "group_step": steps["group"],
        "rows": rows,
        "row_step": steps["row"],
        "chunks": sizes["chunk"],
        "chunk_step": steps["chunk"],
        "chunk": chunk,
        "width": width,
        **view_args("x", source),
        **view_args("y", target),
    }
    return Step(reorder, ReorderTile(lanes, *kinds, mode), args)
