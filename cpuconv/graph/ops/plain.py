"""Rare operators that NumPy computes.

Source: ONNX operators of these names. ONNX's own evaluator lacks MaxRoiPool; for the others it deviates from ONNX's
specification or lacks types.
"""

from __future__ import annotations

import numpy as np

from cpuconv.functions.casting import wide
from cpuconv.functions.regions import affine_grid, max_roi_pool
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


def _pooled(node: Node, arrays: Arrays) -> np.ndarray:
    return max_roi_pool(arrays[0], arrays[1], node["pooled_shape"], node["spatial_scale"])


def _infer_affine_grid(node: Node, inputs: Inputs) -> list[Value]:
    theta, sizes = inputs[0], integers(inputs[1].array)
    axes = len(sizes) - 2
    if axes not in (2, 3) or tuple(theta.shape) != (sizes[0], axes, axes + 1):
        raise ValueError(f"of sizes {sizes} there must be a matrix of 2 by 3, or of 3 by 4, for each image")
    return [Value((sizes[0], *sizes[2:], axes), theta.dtype)]


def _grid(node: Node, arrays: Arrays) -> np.ndarray:
    return affine_grid(arrays[0], integers(arrays[1])[2:], bool(node["align_corners"]))


_POOL = {"pooled_shape": REQUIRED, "spatial_scale": 1.0}

OPS = (
    Op("Hardmax", like_first, hardmax, {"axis": -1}),
    Op("Det", _infer_det, det),
    Op("Unique", _infer_unique, unique, {"axis": None, "sorted": 1}, widened=False),
    Op("MaxRoiPool", _infer_max_roi_pool, _pooled, _POOL),
    Op("AffineGrid", _infer_affine_grid, _grid, {"align_corners": 0}, parameters=(1,)),
)
