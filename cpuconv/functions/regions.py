"""Regions of images and grids of coordinates, as ONNX defines MaxRoiPool and AffineGrid.

MaxRoiPool rounds like its authors' code (Fast R-CNN), as ONNX does not specify it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def max_roi_pool(x: np.ndarray, rois: np.ndarray, pooled_shape: Sequence[int], scale: float) -> np.ndarray:
    """Maximum of each bin of each region, 0 for empty bins; ends of regions are rounded and inclusive."""
    y = np.zeros((len(rois), x.shape[1], *pooled_shape))
    for roi, pooled in zip(rois, y, strict=True):
        image, corners = int(roi[0]), roi[1:].astype(np.float32) * np.float32(scale)
        if not 0 <= image < len(x):
            raise ValueError(f"a region of image {image} of {len(x)}")
        left, top, right, bottom = np.trunc(corners + np.copysign(0.5, corners.astype(np.float64))).astype(int)
        rows = _bins(top, bottom, pooled_shape[0], x.shape[2])
        columns = _bins(left, right, pooled_shape[1], x.shape[3])
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                part = x[image, :, row, column]
                if part.size:
                    pooled[:, i, j] = part.max((1, 2))
    return y


def _bins(start: int, end: int, count: int, size: int) -> list[slice]:
    """Bins of a region along an axis, clipped to the image; they overlap if its length is not divisible."""
    each = np.float32(max(end - start + 1, 1)) / np.float32(count)
    ends = [(start + math.floor(at * each), start + math.ceil((at + 1) * each)) for at in map(np.float32, range(count))]
    return [slice(min(max(low, 0), size), min(max(high, 0), size)) for low, high in ends]


def affine_grid(theta: np.ndarray, sizes: Sequence[int], aligned: bool) -> np.ndarray:
    """Coordinates after an affine transform; -1 and 1 are the ends of an axis, or the centres of its end elements."""
    lines = [_line(size, aligned) for size in sizes]
    places = [*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(sizes)]
    return np.einsum("nij,j...->n...i", theta, np.stack(places))


def _line(size: int, aligned: bool) -> np.ndarray:
    """Coordinates of the elements along an axis; a single element with `aligned` is at the centre."""
    if aligned:
        return np.linspace(-1, 1, size) if size > 1 else np.zeros(size)
    return (2 * np.arange(size) + 1) / max(size, 1) - 1
