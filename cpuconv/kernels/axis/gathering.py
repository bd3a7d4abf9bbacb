"""Gather along an axis by constant indices."""

from __future__ import annotations

import numpy as np

from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.tensor_views import permuted


def gather_steps(
    processor: Processor, space: Space, x: TensorView, y: TensorView, axis: int, indices: np.ndarray
) -> list[Step]:
    """Make one copy: over two axes, if the indices form a regular grid, as in channel shuffles; else by a table.

    Tensors are plain; negative indices count from the end of the axis.
    """
    places, stride = indices % x.shape[axis], x.strides[axis]
    order = [axis, *(other for other in range(len(x.shape)) if other != axis)]
    x, y = permuted(x.at(0, y.shape), order), permuted(y, order)
    grid = _grid(places)
    if grid is None:
        return move_tensor(processor, space, x, y, places * stride)
    rows, columns = grid.shape
    shape, steps = (rows, columns, *x.shape[1:]), (grid[1, 0] - grid[0, 0], grid[0, 1] - grid[0, 0])
    x = x.at(int(grid[0, 0]) * stride, shape, (*(int(step) * stride for step in steps), *x.strides[1:]))
    return move_tensor(processor, space, x, y.at(0, shape, (columns * y.strides[0], *y.strides)))


def _grid(places: np.ndarray) -> np.ndarray | None:
    """Reshape indices to evenly spaced rows of evenly spaced numbers, at least two of each; None if they are not so."""
    steps = np.diff(places)
    columns = int(np.argmax(steps != steps[0])) + 1
    if columns == 1 or places.size % columns:
        return None
    grid = places.reshape(-1, columns)
    even = all((np.diff(grid, 2, axis) == 0).all() for axis in (0, 1)) and (np.diff(grid, 1, 1) == steps[0]).all()
    return grid if even else None
