"""Slices along an axis that constant indices name, copied side by side."""

from __future__ import annotations

import numpy as np

from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.copies.copying import copy_step
from cpuconv.kernels.copies.place_views import permuted


def gather_step(processor: Processor, x: Place, y: Place, axis: int, indices: np.ndarray) -> Step:
    """One copy: of two axes, if the indices are a grid of them, as those of channel shuffles are; else by a table.

    Places are plain; negative indices, of one axis, count from the end.
    """
    places, stride = indices % x.shape[axis], x.strides[axis]
    order = [axis, *(other for other in range(len(x.shape)) if other != axis)]
    x, y = permuted(x.at(0, y.shape), order), permuted(y, order)
    grid = _grid(places)
    if grid is None:
        return copy_step(processor, x, y, places * stride)
    rows, columns = grid.shape
    shape, steps = (rows, columns, *x.shape[1:]), (grid[1, 0] - grid[0, 0], grid[0, 1] - grid[0, 0])
    x = x.at(int(grid[0, 0]) * stride, shape, (*(int(step) * stride for step in steps), *x.strides[1:]))
    return copy_step(processor, x, y.at(0, shape, (columns * y.strides[0], *y.strides)))


def _grid(places: np.ndarray) -> np.ndarray | None:
    """Evenly spaced rows of evenly spaced numbers, two or more of each, if numbers in a line are that; else None."""
    steps = np.diff(places)
    columns = int(np.argmax(steps != steps[0])) + 1
    if columns == 1 or places.size % columns:
        return None
    grid = places.reshape(-1, columns)
    even = all((np.diff(grid, 2, axis) == 0).all() for axis in (0, 1)) and (np.diff(grid, 1, 1) == steps[0]).all()
    return grid if even else None
