"""A network that finds boxes: their number depends on the elements of its input."""

from __future__ import annotations

import numpy as np
import onnx

from support.graphs import normal, parse

# Boxes and scores by convolutions; the best boxes by suppression, and their corners by what it leaves.
DETECTOR = """g (float[N,3,H,W] x) => (float[N,B,4] all, float[K,4] best, int64[K,3] chosen)
    <int64[3] places = {1, 4, -1}, int64[3] labels = {1, 2, -1}, int64 most = {3}, float[1] overlap = {0.5},
     float[1] least = {0.4}, int64[1] at = {2}, int64[1] end = {3}, int64[1] axis = {1}> {
    features = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    lively = Relu(features)
    boxes = Conv <kernel_shape = [1,1]> (lively, v)
    flat = Reshape(boxes, places)
    all = Transpose <perm = [0,2,1]> (flat)
    planes = Conv <kernel_shape = [1,1]> (lively, u)
    rows = Reshape(planes, labels)
    scores = Sigmoid(rows)
    chosen = NonMaxSuppression(all, scores, most, overlap, least)
    column = Slice(chosen, at, end, axis)
    index = Squeeze(column, axis)
    first = Squeeze(all)
    best = Gather <axis = 0> (first, index)
}"""


def detector() -> onnx.ModelProto:
    """Of random weights; scores stay where Sigmoid tells them apart."""
    weights = normal(np.random.default_rng(0), {"w": (8, 3, 3, 3), "v": (4, 8, 1, 1), "u": (2, 8, 1, 1)})
    return parse(DETECTOR, **weights | {"u": weights["u"] / 10})
