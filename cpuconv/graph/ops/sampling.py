"""Sampling of images at computed coordinates.

Source: ONNX operators GridSample, for any number of axes, DeformConv and RoiAlign; kernels compute those of float32
images. Rewrites make the other two. MultiScaleDeformableAttention (Zhu et al., 2021) sums samples of the values (M, C,
H, W) of each level at the points of a grid (M, Q, P, 2), times weights (M, 1, Q, all points); M counts the heads of all
images. DeformableIm2col makes the columns (N, C · taps, Ho, Wo) of DeformConv, in the order group, tap, channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import F32
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import REQUIRED, Inputs, Op, defined, given
from cpuconv.graph.ops.planes import blocked_size
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, FLOAT32, STRIDED
from cpuconv.kernels.sampling import attention, columns, definition, grid_sample, regions
from cpuconv.kernels.sampling.images import MAX_IMAGE
from cpuconv.kernels.sampling.taps import TapsTile
from cpuconv.problem.integers import divide


def _tile(call: Call) -> TapsTile:
    node, axes = call.node, len(call.x.shape) - 2
    aligned = bool(node["align_corners"])
    return TapsTile(call.target.isa.lanes, node["mode"], node["padding_mode"], aligned, axes=axes)


def _is_float32(inputs: Inputs) -> bool:
    """Whether all operands are float32, and none is empty."""
    return all(each is None or (each.dtype == FLOAT32 and 0 not in each.shape) for each in inputs)


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    x, grid = inputs
    if len(grid.shape) != len(x.shape) or (grid.shape[0], grid.shape[-1]) != (x.shape[0], len(x.shape) - 2):
        raise ValueError("the grid must have coordinates for each output of each image")
    if 0 in x.shape[2:] and 0 not in (*x.shape[:2], *grid.shape) and node["padding_mode"] != "zeros":
        raise ValueError("planes without pixels have no border")
    return [Value((*x.shape[:2], *grid.shape[1:-1]), x.dtype)]


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer for images and 3-D tensors, with channels contiguous or not."""
    x, grid = inputs
    image = divide(x.shape[1], target.isa.lanes) * target.isa.lanes * math.prod(x.shape[2:])
    if len(x.shape) not in (4, 5) or not _is_float32(inputs) or image * F32.bytes >= MAX_IMAGE:
        return []
    seconds = grid_sample.seconds(target, node["mode"], x.shape, math.prod(grid.shape[1:-1]))
    return [Offer((STRIDED, DENSE), (DENSE,), seconds)]


def _lower(call: Call) -> list[Step]:
    x, grid = call.inputs
    assert x is not None and grid is not None
    return grid_sample.grid_sample_steps(call.target, call.space, _tile(call), x, grid, call.y)


def _offer_attention(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    if not _is_float32(inputs) or any(math.prod(x.shape[1:]) * F32.bytes >= MAX_IMAGE for x in inputs[1::2]):
        return []
    items, _, queries, samples = inputs[0].shape
    seconds = attention.seconds(target, items, queries, samples, inputs[1].shape[1])
    return [Offer((STRIDED,) * len(inputs), (DENSE,), seconds)]


def _lower_attention(call: Call) -> list[Step]:
    operands: Any = call.inputs
    return attention.attention_steps(call.target, call.space, _tile(call), call.node["heads"], operands, call.y)


def _infer_im2col(node: Node, inputs: Inputs) -> list[Value]:
    x, kernel = inputs[0], node["kernel_shape"]
    window = definition.deformed_window(node.attributes, x, inputs[1], given(inputs, 2), kernel)
    return [Value((x.shape[0], x.shape[1] * math.prod(kernel), *window.outputs), x.dtype)]


def _cells(node: Node) -> int:
    """Number of parts of the channels that have one group and one offset group each."""
    return math.lcm(node["group"], node["offset_group"])


def _offer_im2col(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in channel blocks, each of one group."""
    x, (y,) = inputs[0], _infer_im2col(node, inputs)
    sizes = [blocked_size(each, target) for each in (x, y)]
    if not _is_float32((*inputs, y)) or x.shape[1] // _cells(node) % target.isa.lanes or sizes[0] * 4 >= MAX_IMAGE:
        return []
    return [Offer((BLOCKED, DENSE, DENSE)[: len(inputs)], (BLOCKED,), columns.seconds(target, *sizes))]


def _lower_im2col(call: Call) -> list[Step]:
    x, offset, mask, node = call.x, call.given(1), call.given(2), call.node
    assert offset is not None
    window = definition.deformed_window(node.attributes, x, offset, mask, node["kernel_shape"])
    groups = node["group"], node["offset_group"], _cells(node)
    return [columns.columns_step(call.target, call.space, window, groups, x, offset, mask, call.y)]


def _infer_regions(node: Node, inputs: Inputs) -> list[Value]:
    x, rois, images = inputs
    if len(x.shape) != 4 or rois.shape != (*images.shape, 4) or len(images.shape) != 1:
        raise ValueError("there must be images (N, C, H, W), regions (R, 4), and the image of each")
    return [Value((*images.shape, x.shape[1], node["output_height"], node["output_width"]), x.dtype)]


def _offer_regions(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer for images in channel blocks, or with channels contiguous or not."""
    x, rois, images = inputs
    y: Any = _infer_regions(node, inputs)[0].shape
    if not _is_float32((x, rois)) or images.dtype != np.int64 or 0 in y:
        return []
    seconds = regions.seconds(target, x.shape, y[0], y[2] * y[3], node["sampling_ratio"])
    moved = target.moving(2 * math.prod(x.shape) * F32.bytes)
    blocked = [Offer((BLOCKED, DENSE, DENSE), (form,), seconds) for form in (BLOCKED, DENSE)]
    return [*blocked, Offer((STRIDED, DENSE, DENSE), (DENSE,), seconds + moved)]


def _lower_regions(call: Call) -> list[Step]:
    x, rois, images = call.inputs
    assert x is not None and rois is not None and images is not None
    return regions.roi_align_steps(call.target, call.space, call.node.attributes, x, rois, images, call.y)


def _shaped(shape: Callable[..., tuple[int, ...]]) -> Callable[[Node, Inputs], list[Value]]:
    """Make a rule of a function that takes attributes and values, and gives the shape of the output."""
    return lambda node, inputs: [Value(shape(node.attributes, *inputs), inputs[0].dtype)]


_GRID = {"align_corners": 0, "mode": "linear", "padding_mode": "zeros"}
_WINDOW = {"dilations": None, "group": 1, "kernel_shape": None, "offset_group": 1, "pads": None, "strides": None}
_REGIONS = {"coordinate_transformation_mode": "half_pixel", "mode": "avg", "output_height": 1, "output_width": 1}
_REGIONS |= {"sampling_ratio": 0, "spatial_scale": 1.0}
_SAMPLED: dict[str, Any] = {"mixed": True, "window": True, "offers": _offers, "lower": _lower}
_SAMPLED["signature"] = "x: float32 (N C S...), grid: float32 (N P... A) -> y: float32 (N C P...)"
_LEVELS: dict[str, Any] = {"own": True, "offers": _offer_attention, "lower": _lower_attention}
_LEVELS["signature"] = "weights: float32 (M 1 Q S), levels*: float32 -> y: float32 (N Q D)"
_PRODUCT: dict[str, Any] = {"product": True, "window": True}
_COLUMNS: dict[str, Any] = {"own": True, "window": True, "offers": _offer_im2col, "lower": _lower_im2col}
_COLUMNS["signature"] = "x: float32 (N C H W), offset: float32, mask?: float32 -> y: float32 (N D P Q)"
_ALIGNED: dict[str, Any] = {"mixed": True, "window": True, "offers": _offer_regions, "lower": _lower_regions}
_ALIGNED["signature"] = "x: float32 (N C H W), rois: float32 (R 4), images: any (R) -> y: float32 (R C P Q)"

OPS = (
    Op("GridSample", _infer, defined(definition.grid_sample), _GRID, **_SAMPLED),
    Op(
        "MultiScaleDeformableAttention",
        _shaped(definition.attention_shape),
        defined(definition.deformable_attention),
        {**_GRID, "heads": 1},
        **_LEVELS,
    ),
    Op("DeformConv", _shaped(definition.deformed_shape), defined(definition.deform_conv), _WINDOW, **_PRODUCT),
    Op(
        "DeformableIm2col",
        _infer_im2col,
        defined(definition.deformable_im2col),
        {**_WINDOW, "kernel_shape": REQUIRED},
        **_COLUMNS,
    ),
    Op("RoiAlign", _infer_regions, defined(definition.roi_align), _REGIONS, **_ALIGNED),
)
