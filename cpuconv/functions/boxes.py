"""Boxes of object detection: corners, and suppression of overlapping boxes as ONNX defines it."""

from __future__ import annotations

import numpy as np


def corners(boxes: np.ndarray, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corner of every box (..., 4), each (..., 2); `centred`: boxes are centres and sizes."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _area(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.maximum(high - low, 0).prod(-1)


def select_boxes(low: np.ndarray, high: np.ndarray, order: np.ndarray, limit: int, threshold: float) -> list[int]:
    """Select up to `limit` boxes in order; skip boxes that overlap a selected one by more than the threshold."""
    kept: list[int] = []
    areas = _area(low, high)
    while order.size and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        shared = _area(np.maximum(low[best], low[order]), np.minimum(high[best], high[order]))
        union = areas[best] + areas[order] - shared
        order = order[~(shared / union > threshold)]  # boxes of zero area overlap none
    return kept
