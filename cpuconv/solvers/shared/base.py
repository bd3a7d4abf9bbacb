"""Strides of C-contiguous activations, and a check of tile sizes, for all solvers."""

from __future__ import annotations

import layouts
from cpuconv.elements import F32, Element
from layouts import Strides


def contiguous(layout: str, shape: tuple[int, int, int, int], element: Element = F32) -> Strides:
    """Byte strides of a C-contiguous activation of such elements, of logical `shape` in `layout`."""
    physical = layouts.get(layout).shape(*shape)
    strides, step = [], element.bytes
    for size in reversed(physical):
        strides.append(step)
        step *= size
    return layouts.get(layout).strides(strides[::-1])


def check_tile(rows: int, cols: int, height: int, width: int) -> None:
    """Check that an output plane is at least one tile, as the last tile of a row or column overlaps the one before.

    Raises
    ------
    ValueError
        The tile is larger than the plane.
    """
    if rows > height or cols > width:
        raise ValueError("the tile is larger than the plane")
