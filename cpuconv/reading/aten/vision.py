"""Adapters of torchvision's operators: regions of images, deformable convolution, suppression of boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cpuconv.reading.aten.emitter import END, INT64, Emitter, Unsupported
from cpuconv.reading.aten.shapes import sliced


def _regions(b: Emitter, rois: Any) -> tuple[str, str]:
    """Corners of regions, and the image of each, which is the first column."""
    image = b.add("Cast", b.add("Gather", rois, b.number(0, INT64), axis=1), to=INT64)
    return sliced(b, rois, 1, 1), image


def _roi_align(b: Emitter, x: Any, rois: Any, scale: float, height: Any, width: Any, ratio: int, aligned: bool) -> str:
    return b.add(
        "RoiAlign", x, *_regions(b, rois), output_height=height, output_width=width, sampling_ratio=max(ratio, 0),
        spatial_scale=float(scale), coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip


def _ps_roi_align(b: Emitter, x: Any, rois: Any, scale: float, height: int, width: int, ratio: int) -> list[str]:
    """Each bin of an output channel is aligned in an input channel of its own."""
    bins = height * width
    every = b.add("Reshape", _roi_align(b, x, rois, scale, height, width, ratio, True), b.integers(0, -1, bins**2))
    y = b.add("Gather", every, torch.arange(bins) * (bins + 1), axis=2)
    return [b.add("Reshape", y, b.integers(0, 0, height, width)), ""]


def _roi_pool(b: Emitter, x: Any, rois: Any, scale: float, height: int, width: int) -> list[str]:
    return [b.add("MaxRoiPool", x, rois, pooled_shape=[height, width], spatial_scale=float(scale)), ""]


def _deform_conv(
    b: Emitter, x: Any, w: Any, offset: Any, mask: Any, bias: Any, stride_h: int, stride_w: int, pad_h: int, pad_w: int,
    dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> str:  # fmt: skip
    return b.add(
        "DeformConv", x, w, offset, bias, mask if use_mask else None, strides=[stride_h, stride_w],
        pads=[pad_h, pad_w] * 2, dilations=[dilation_h, dilation_w], group=groups, offset_group=offset_groups,
    )  # fmt: skip


def _suppressed(b: Emitter, boxes: Any, scores: Any, threshold: float) -> str:
    """Indices of the boxes that `torchvision.ops.nms` keeps, by descending scores."""
    if boxes.dtype != torch.float32:
        raise Unsupported(f"type {boxes.dtype}")
    found = b.add(
        "NonMaxSuppression", b.add("Unsqueeze", boxes, b.integers(0)), b.add("Unsqueeze", scores, b.integers(0, 1)),
        b.integers(END), b.array(np.array([threshold], np.float32)),
    )  # fmt: skip
    return b.add("Gather", found, b.number(2, INT64), axis=1)


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    "torchvision::roi_align": _roi_align,
    "torchvision::ps_roi_align": _ps_roi_align,
    "torchvision::roi_pool": _roi_pool,
    "torchvision::deform_conv2d": _deform_conv,
    "torchvision::nms": _suppressed,
}
