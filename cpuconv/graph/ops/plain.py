"""Rare operators that NumPy computes.

Source: ONNX operators of these names. MaxRoiPool rounds like its authors' code (Fast R-CNN), as ONNX does not specify
it. ONNX's own evaluator lacks MaxRoiPool; for the others it deviates from ONNX's specification or lacks types.
"""

from __future__ import annotations

import math

import numpy as np

from cpuconv.functions.casting import wide
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, axis_in, integers, like_first

_INT64 = np.dtype(np.int64)


def hardmax(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute 1 at the first maximum along the axis, else 0."""
    (x,) = arrays
    y, axis = np.zeros(x.shape), axis_in(node["axis"], x.ndim)
    if x.size:
        np.put_along_axis(y, np.expand_dims(x.argmax(axis), axis), 1, axis)
    return y


def _infer_det(node: Node, inputs: Inputs) -> list[Value]:
    *batch, rows, columns = inputs[0].shape
    if rows != columns:
        raise ValueError(f"matrices of {rows} rows and {columns} columns")
    return [Value(tuple(batch), inputs[0].dtype)]


def det(node: Node, arrays: Arrays) -> np.ndarray:
    """Determinants of square matrices."""
    return np.linalg.det(arrays[0])


def _infer_unique(node: Node, inputs: Inputs) -> list[Value]:
    (x,) = inputs
    shape: list[int | None] = [None] if node["axis"] is None else [*x.shape]
    if node["axis"] is not None:
        shape[axis_in(node["axis"], len(shape))] = None
    return [Value(tuple(shape), x.dtype), *[Value((None,), _INT64)] * 3]


def unique(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Unique elements, or slices along an axis; with first indices, inverse indices and counts.

    They are in ascending order, or in the order of their first occurrence.
    """
    (x,), axis = arrays, node["axis"]
    y, first, inverse, counts = np.unique(wide(x), True, True, True, axis=axis)
    if not node["sorted"]:
        order = np.argsort(first)
        y, first, counts = y.take(order, axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return y.astype(x.dtype), first, inverse.reshape(-1), counts


def _infer_max_roi_pool(node: Node, inputs: Inputs) -> list[Value]:
    x, rois = inputs
    if len(x.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 5:
        raise ValueError("there must be images of (N, C, H, W), and a batch index and two corners for each region")
    height, width = node["pooled_shape"]
    if not all(isinstance(size, int) and size > 0 for size in (height, width)):
        raise ValueError(f"the pooled_shape is {node['pooled_shape']}")
    return [Value((rois.shape[0], x.shape[1], height, width), x.dtype)]


def max_roi_pool(node: Node, arrays: Arrays) -> np.ndarray:
    """Maximum of each bin of each region, 0 for empty bins; ends of regions are rounded and inclusive."""
    x, rois = arrays
    y = np.zeros((len(rois), x.shape[1], *node["pooled_shape"]))
    for roi, pooled in zip(rois, y, strict=True):
        image, corners = int(roi[0]), roi[1:].astype(np.float32) * np.float32(node["spatial_scale"])
        if not 0 <= image < len(x):
            raise ValueError(f"a region of image {image} of {len(x)}")
        left, top, right, bottom = np.trunc(corners + np.copysign(0.5, corners.astype(np.float64))).astype(int)
        rows = _bins(top, bottom, node["pooled_shape"][0], x.shape[2])
        columns = _bins(left, right, node["pooled_shape"][1], x.shape[3])
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


def _infer_affine_grid(node: Node, inputs: Inputs) -> list[Value]:
    theta, sizes = inputs[0], integers(inputs[1].array)
    axes = len(sizes) - 2
    if axes not in (2, 3) or tuple(theta.shape) != (sizes[0], axes, axes + 1):
        raise ValueError(f"of sizes {sizes} there must be a matrix of 2 by 3, or of 3 by 4, for each image")
    return [Value((sizes[0], *sizes[2:], axes), theta.dtype)]


def affine_grid(node: Node, arrays: Arrays) -> np.ndarray:
    """Coordinates after an affine transform; -1 and 1 are the ends of an axis, or the centres of its end elements."""
    theta, sizes = arrays[0], integers(arrays[1])[2:]
    lines = [_line(size, bool(node["align_corners"])) for size in sizes]
    places = [*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(sizes)]
    return np.einsum("nij,j...->n...i", theta, np.stack(places))


def _line(size: int, aligned: bool) -> np.ndarray:
    """Coordinates of the elements along an axis; a single element with `aligned` is at the centre."""
    if aligned:
        return np.linspace(-1, 1, size) if size > 1 else np.zeros(size)
    return (2 * np.arange(size) + 1) / max(size, 1) - 1


_POOL = {"pooled_shape": REQUIRED, "spatial_scale": 1.0}

OPS = (
    Op("Hardmax", like_first, hardmax, {"axis": -1}),
    Op("Det", _infer_det, det),
    Op("Unique", _infer_unique, unique, {"axis": None, "sorted": 1}, widened=False),
    Op("MaxRoiPool", _infer_max_roi_pool, max_roi_pool, _POOL),
    Op("AffineGrid", _infer_affine_grid, affine_grid, {"align_corners": 0}, parameters=(1,)),
)
