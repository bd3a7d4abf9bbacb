"""Views: sizes and strides of an activation in memory, as kernels of any layout take them."""

from __future__ import annotations

import functools

from cpuconv.elements import F32, Element
from cpuconv.kernels.binding.steps import Args
from cpuconv.kernels.copies.rows import BLOCKED, RowTile, kind_of
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from layouts import Strides


def view_args(prefix: str, strides: Strides) -> Args:
    """The arguments `<prefix>_image`, `<prefix>_block` … `<prefix>_w` of a kernel that takes any view."""
    return dict(zip(_names(prefix), strides, strict=True))


@functools.cache
def _names(prefix: str) -> list[str]:
    """Argument names of the fields of `Strides`."""
    return [f"{prefix}_{field}" for field in ("image", *Strides._fields[1:])]


def row_tile(lanes: int, view: Strides, element: Element = F32, channels: int = 0) -> RowTile:
    """The row loops for a view; `channels` matters only for elements narrower than 32 bits."""
    whole = channels * element.bytes % 4 == 0
    return RowTile(lanes, kind_of(lanes, view.block, view.cb, view.c, view.w, element, whole), element.bytes)


def is_blocked(lanes: int, view: Strides) -> bool:
    """Whether a view has contiguous channel blocks of `lanes` lanes."""
    return row_tile(lanes, view).kind == BLOCKED and view.w == lanes * F32.bytes


def plane(height: int, width: int, *views: Strides) -> tuple[int, int, tuple[Strides, ...]]:
    """Height, width and strides of the same plane with the fewest rows that the views allow."""
    if width == 1:
        return 1, height, tuple(view._replace(w=view.h) for view in views)
    if height == 1 or all(view.h == width * view.w for view in views):
        return 1, height * width, views
    return height, width, views


def input_plane(problem: ConvProblem, x: Strides) -> tuple[Strides, Args]:
    """The input view and its arguments, for kernels that pack columns. The plane is one row where output pixels are the
    input's and the view allows."""
    height, width, out_width, source = problem.h, problem.w, problem.ow, x
    if is_plain(problem):
        height, width, (source,) = plane(height, width, x)
        out_width = width
    sizes: Args = {"in_height": height, "in_width": width, "out_width": out_width, "x_span": span(problem, x)}
    return source, sizes | view_args("x", source)


def span(problem: ConvProblem, strides: Strides) -> int:
    """Bytes from the first element of the input that are all within its memory; 0 if a stride is negative."""
    if min(strides) < 0:
        return 0
    steps = (strides.n, strides.cb, strides.c, strides.h, strides.w)
    counts = (problem.n, divide(problem.c, strides.block), strides.block, problem.h, problem.w)
    return sum((count - 1) * step for count, step in zip(counts, steps, strict=True)) + F32.bytes
