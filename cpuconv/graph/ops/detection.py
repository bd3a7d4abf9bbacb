"""Object detection: non-maximum suppression of overlapping boxes.

Source: the ONNX operator NonMaxSuppression. The number of boxes in the result depends on the scores.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import Arrays, Inputs, Op, given

_INT64 = np.dtype(np.int64)


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    boxes, scores = inputs[:2]
    if len(boxes.shape) != 3 or boxes.shape[2] != 4 or (scores.shape[0], *scores.shape[2:]) != boxes.shape[:2]:
        raise ValueError("there must be boxes of (images, boxes, 4) and scores of (images, classes, boxes)")
    return [Value((None, 3), _INT64)]


def _corners(node: Node, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corner of every box, each (..., 2)."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if node["center_point_box"]:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _area(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.maximum(high - low, 0).prod(-1)


def _kept(low: np.ndarray, high: np.ndarray, order: np.ndarray, most: int, threshold: float) -> list[int]:
    """Select up to `most` boxes in order; skip boxes that overlap a selected one by more than the threshold."""
    kept: list[int] = []
    areas = _area(low, high)
    while order.size and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        shared = _area(np.maximum(low[best], low[order]), np.minimum(high[best], high[order]))
        union = areas[best] + areas[order] - shared
        order = order[~(shared / union > threshold)]  # boxes of zero area overlap none
    return kept


def non_max_suppression(node: Node, arrays: Arrays) -> np.ndarray:
    """Indices (image, class, box) of the selected boxes, per image and class by descending score."""
    boxes, scores = arrays[:2]
    most, overlap, least = (None if given(arrays, at) is None else given(arrays, at).item() for at in (2, 3, 4))
    low, high = _corners(node, boxes)
    rows = []
    for image, label in np.ndindex(scores.shape[:2]):
        of_class = scores[image, label]
        able = np.arange(len(of_class)) if least is None else np.flatnonzero(of_class > least)
        order = able[np.argsort(-of_class[able], kind="stable")]
        rows += [(image, label, box) for box in _kept(low[image], high[image], order, most or 0, overlap or 0.0)]
    return np.array(rows, np.int64).reshape(-1, 3)


OPS = (Op("NonMaxSuppression", _infer, non_max_suppression, {"center_point_box": 0}, mixed=True, widened=False),)
