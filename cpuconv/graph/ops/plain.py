"""Rare operators, which NumPy computes.

Source: ONNX operators of these names; MaxRoiPool rounds as its authors' code does (Fast R-CNN), which ONNX leaves open.
ONNX's own evaluator has no MaxRoiPool; the others it computes otherwise than ONNX says, or in some types alone.
"""

from __future__ import annotations

import math

import numpy as np

from cpuconv.functions.casting import wide
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, axis_in, integers, like_first

_INT64 = np.dtype(np.int64)


def hardmax(node: Node, arrays: Arrays) -> np.ndarray:
    """1 where the first of the largest elements along the axis is, else 0."""
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
    """The determinants of square matrices."""
    return np.linalg.det(arrays[0])


def _infer_unique(node: Node, inputs: Inputs) -> list[Value]:
    (x,) = inputs
    shape: list[int | None] = [None] if node["axis"] is None else [*x.shape]
    if node["axis"] is not None:
        shape[axis_in(node["axis"], len(shape))] = None
    return [Value(tuple(shape), x.dtype), *[Value((None,), _INT64)] * 3]


def unique(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Elements, or slices along an axis, once each; where each is first, which one each of the input is, how many.

    They are in ascending order, or in that of their first occurrence.
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
    """The largest element of each bin of each region, 0 where it has none; ends of regions are whole and inclusive."""
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
    """The bins of a region along an axis, as far as they are inside; they overlap where its length is not divisible."""
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
    """Where an affine transform puts each element; -1 and 1 are the ends of an axis, or the middles of its ends."""
    theta, sizes = arrays[0], integers(arrays[1])[2:]
    lines = [_line(size, bool(node["align_corners"])) for size in sizes]
    places = [*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(sizes)]
    return np.einsum("nij,j...->n...i", theta, np.stack(places))


def _line(size: int, aligned: bool) -> np.ndarray:
    """The places of the elements along an axis; of one that is aligned with two ends, the middle."""
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
