"""Object detection: non-maximum suppression of overlapping boxes.

Source: the ONNX operator NonMaxSuppression. The number of boxes in the result depends on the scores.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.functions.boxes import corners, select_boxes
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, Arrays, Inputs, Op, given, integers
from cpuconv.graph.ops.searching import bounded
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE
from cpuconv.kernels.search import suppression
from cpuconv.symbolic.sizes import least

_INT64 = np.dtype(np.int64)


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    boxes, scores = inputs[:2]
    if len(boxes.shape) != 3 or boxes.shape[2] != 4 or (scores.shape[0], *scores.shape[2:]) != boxes.shape[:2]:
        raise ValueError("there must be boxes of (images, boxes, 4) and scores of (images, classes, boxes)")
    return [Value((None, 3), _INT64)]


def non_max_suppression(node: Node, arrays: Arrays) -> np.ndarray:
    """Indices (image, class, box) of the selected boxes, per image and class by descending score."""
    boxes, scores = arrays[:2]
    most, overlap, least = (None if given(arrays, at) is None else given(arrays, at).item() for at in (2, 3, 4))
    low, high = corners(boxes, bool(node["center_point_box"]))
    rows = []
    for image, label in np.ndindex(scores.shape[:2]):
        of_class = scores[image, label]
        able = np.arange(len(of_class)) if least is None else np.flatnonzero(of_class > least)
        order = able[np.argsort(-of_class[able], kind="stable")]
        selected = select_boxes(low[image], high[image], order, most or 0, overlap or 0.0)
        rows += [(image, label, box) for box in selected]
    return np.array(rows, np.int64).reshape(-1, 3)


def _infer_bounded(node: Node, inputs: Inputs) -> list[Value]:
    """Rows for as many results as there may be, and the number of results."""
    (_, boxes), classes = inputs[0].shape[:2], inputs[1].shape[1]
    (most,) = integers(inputs[2].array)
    _infer(node, inputs)
    return bounded(node, inputs[1].shape[0] * classes * least(max(0, most), boxes), 3)


def bounded_suppression(node: Node, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The rows of `non_max_suppression`, followed by rows of -1, and their number."""
    found = non_max_suppression(node, arrays)
    shape: Any = _infer_bounded(node, [Value.of(each) for each in arrays[:3]])[0].shape
    rows = np.full(shape, -1)
    rows[: len(found)] = found
    return rows, np.array([len(found)])


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    shape, (rows, _) = inputs[1].shape, _infer_bounded(node, inputs)
    if 0 in shape or 0 in (rows.shape or ()) or any(each and math.prod(each.shape) != 1 for each in inputs[3:]):
        return []
    seconds = suppression.seconds(target, shape[0] * shape[1], shape[2], integers(inputs[2].array)[0])
    return [Offer((DENSE, DENSE, "", DENSE, DENSE)[: len(inputs)], (DENSE, DENSE), seconds)]


def _lower(call: Call) -> list[Step]:
    boxes, scores, _, overlap, score = (call.given(at) for at in range(5))
    assert boxes is not None and scores is not None
    center = bool(call.node["center_point_box"])
    return suppression.suppression_steps(call.target, call.space, boxes, scores, overlap, score, center, *call.outputs)


_CENTER = {"center_point_box": 0}
_SIGNATURE = (
    "boxes: float32 (N B 4), scores: float32 (N C B), most: known, overlap?: float32, least?: float32"
    " -> rows: any (P 3), count: any (1)"
)
OPS = (
    Op("NonMaxSuppression", _infer, non_max_suppression, _CENTER, mixed=True, widened=False),
    Op(
        "BoundedNonMaxSuppression",
        _infer_bounded,
        bounded_suppression,
        _CENTER,
        parameters=(2,),
        **EXACT,
        offers=_offers,
        lower=_lower,
        signature=_SIGNATURE,
        own=True,
    ),
)
