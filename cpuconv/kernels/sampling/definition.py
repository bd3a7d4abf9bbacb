"""Definitions in NumPy of what the kernels compute: interpolation at a grid's, a window's and a region's coordinates.

Source: ONNX operators GridSample, DeformConv and RoiAlign; Zhu et al., "Deformable DETR" (2021). Floats are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from cpuconv.problem.resizing import KERNELS
from cpuconv.problem.window import Window

_CUBIC = -0.75  # coefficient of Keys' kernel
MAX_SAMPLES = 4096  # along an axis of a bin of RoiAlign, if their number follows from its size

Attributes = Mapping[str, Any]


def _places(stated: Attributes, at: np.ndarray, size: int) -> np.ndarray:
    """Coordinates in units of elements; -1 and 1 are the centres of the first and the last element, or their edges."""
    return (at + 1) / 2 * (size - 1) if stated["align_corners"] else ((at + 1) * size - 1) / 2


def _inside(stated: Attributes, at: np.ndarray, size: int) -> np.ndarray:
    """Move coordinates out of range inside: to the border, or reflected. In mode "zeros" they do not change."""
    low = 0.0 if stated["align_corners"] else -0.5
    span = size - 1 - 2 * low
    if stated["padding_mode"] == "border":
        return np.where((at < low) | (at > low + span), np.clip(at, 0, size - 1), at)
    if stated["padding_mode"] == "reflection":
        reflected = np.mod(at - low, 2 * span) if span else 0 * at
        return np.minimum(reflected, 2 * span - reflected) + low
    return at


def _taps(stated: Attributes, at: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs around coordinates along an axis, in units of elements, and their weights."""
    if stated["mode"] == "nearest":
        pairs = [(_inside(stated, np.rint(at), size), np.ones(at.shape))]
    else:
        kernel, half = KERNELS[stated["mode"]]
        if stated["mode"] == "linear":  # for cubic, each tap is moved inside separately
            at = _inside(stated, at, size)
        around = [np.floor(at) + step for step in range(1 - half, 1 + half)]
        pairs = [(tap, kernel(at - tap, _CUBIC)) for tap in around]
    if stated["padding_mode"] == "zeros":
        pairs = [(tap, np.where((tap < 0) | (tap >= size), 0, weight)) for tap, weight in pairs]
    elif stated["padding_mode"] == "reflection":
        pairs = [(_inside(stated, tap, size), weight) for tap, weight in pairs]
    return [(np.clip(np.nan_to_num(tap), 0, size - 1).astype(int), weight) for tap, weight in pairs]


def _sampled(stated: Attributes, x: np.ndarray, places: Sequence[np.ndarray]) -> np.ndarray:
    """Weighted means of inputs (N, C, sizes...) around coordinates (N, points...), one array per axis."""
    sizes, points = x.shape[2:], places[0].shape[1:]
    y = np.zeros((len(x), *points, x.shape[1]))
    if 0 not in sizes:
        images = np.arange(len(x)).reshape(-1, *[1] * len(points))
        for choice in product(*map(_taps, [stated] * len(sizes), places, sizes)):
            weight = math.prod(weight for _, weight in choice)
            taken: Any = (images, slice(None), *(tap for tap, _ in choice))
            y += x[taken] * np.asarray(weight)[..., None]
    return np.moveaxis(y, -1, 1)


def grid_sample(stated: Attributes, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Weighted means of inputs (N, C, sizes...) around the coordinates of a grid, the last axis first."""
    kind = np.float32 if stated["mode"] == "nearest" else np.float64
    axes = enumerate(x.shape[2:], 1)
    return _sampled(stated, x, [_places(stated, grid[..., -axis].astype(kind), size) for axis, size in axes])


_BILINEAR = {"mode": "linear", "padding_mode": "zeros", "align_corners": 1}


def deformed_window(stated: Attributes, x: Any, offset: Any, mask: Any, kernel: Sequence[int]) -> Window:
    """Window of a deformable convolution of operands with these shapes.

    Raises
    ------
    ValueError
        Shapes or attributes are inconsistent.
    """
    window = Window.of({**stated, "auto_pad": "NOTSET"}, x.shape[2:], kernel)
    count = stated["offset_group"] * math.prod(kernel)
    shapes = [(x.shape[0], count * each, *window.outputs) for each in (2, 1)]
    if len(kernel) != 2 or x.shape[1] % stated["offset_group"] or x.shape[1] % stated["group"]:
        raise ValueError(f"an input {x.shape} and a kernel {tuple(kernel)}")
    if offset.shape != shapes[0] or (mask is not None and mask.shape != shapes[1]):
        raise ValueError(f"offsets {offset.shape} and a mask of {mask and mask.shape}, not {shapes[0]} and {shapes[1]}")
    return window


def deformed_shape(
    stated: Attributes, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None
) -> tuple[int, ...]:
    """Shape of the output of DeformConv; raises ValueError for inconsistent operands."""
    window = deformed_window(stated, x, offset, mask, tuple(stated["kernel_shape"] or w.shape[2:]))
    if w.shape[1:] != (x.shape[1] // stated["group"], *window.kernel) or w.shape[0] % stated["group"]:
        raise ValueError(f"weights {w.shape} in {stated['group']} groups")
    if bias is not None and bias.shape != w.shape[:1]:
        raise ValueError(f"a bias of shape {bias.shape}")
    return (x.shape[0], w.shape[0], *window.outputs)


def deformable_im2col(stated: Attributes, x: np.ndarray, offset: np.ndarray, mask: Any = None) -> np.ndarray:
    """Inputs (N, C · taps, Ho, Wo) that the taps of a 2-D window read at positions moved by `offset`, times `mask`.

    Channels are in the order group, tap, channel. `offset` (N, groups · taps · 2, Ho, Wo) has distances along both
    axes, `mask` (N, groups · taps, Ho, Wo) factors, for groups of their own.
    """
    window = deformed_window(stated, x, offset, mask, stated["kernel_shape"])
    (n, c, *sizes), parts = x.shape, stated["offset_group"]
    taps, outputs = math.prod(window.kernel), window.outputs
    moved = offset.reshape(n * parts, *window.kernel, 2, *outputs)
    places = []
    for axis, (gap, near, step) in enumerate(zip(window.dilations, window.near, window.strides, strict=True)):
        tap, position = np.arange(window.kernel[axis]) * gap - near, np.arange(outputs[axis]) * step
        start = np.expand_dims(tap, 1 - axis)[..., None, None] + np.expand_dims(position, 1 - axis)
        places.append((moved[:, :, :, axis] + start).reshape(n * parts, -1))
    y = _sampled(_BILINEAR, x.reshape(n * parts, c // parts, *sizes), places)
    y = y.reshape(n, parts, c // parts, taps, *outputs)
    if mask is not None:
        y = y * mask.reshape(n, parts, 1, taps, *outputs)
    return (
        y.reshape(n, stated["group"], c // stated["group"], taps, *outputs)
        .swapaxes(2, 3)
        .reshape(n, c * taps, *outputs)
    )


def deform_conv(
    stated: Attributes, x: np.ndarray, w: np.ndarray, offset: np.ndarray, bias: Any = None, mask: Any = None
) -> np.ndarray:
    """Weights times columns, within groups, plus bias."""
    columns = deformable_im2col({**stated, "kernel_shape": w.shape[2:]}, x, offset, mask)
    groups, (n, _, *plane) = stated["group"], columns.shape
    weights = np.moveaxis(w, 1, -1).reshape(groups, len(w) // groups, math.prod(w.shape[1:]))
    y = (weights @ columns.reshape(n, groups, weights.shape[-1], math.prod(plane))).reshape(n, len(w), *plane)
    return y if bias is None else y + bias[:, None, None]


def attention_shape(stated: Attributes, weights: Any, *levels: Any) -> tuple[int, ...]:
    """Shape of multi-scale deformable attention; raises ValueError for inconsistent operands."""
    values, grids, heads = levels[::2], levels[1::2], stated["heads"]
    (items, channels), queries = values[0].shape[:2], grids[0].shape[1]
    alike = all(each.shape[:2] == (items, channels) for each in values)
    if not alike or any(each.shape[:2] != (items, queries) or each.shape[3:] != (2,) for each in grids):
        raise ValueError("levels must have the same channels and queries")
    samples = sum(grid.shape[2] for grid in grids)
    if weights.shape != (items, 1, queries, samples) or items % heads:
        raise ValueError(f"weights {weights.shape} of {samples} points of {heads} heads")
    return (items // heads, queries, heads * channels)


def deformable_attention(stated: Attributes, weights: np.ndarray, *levels: np.ndarray) -> np.ndarray:
    """Sum of the samples of all levels times their weights, per query, with concatenated heads."""
    samples = [grid_sample(stated, x, grid) for x, grid in zip(levels[::2], levels[1::2], strict=True)]
    y = (np.concatenate(samples, -1) * weights).sum(-1)
    y = y.reshape(-1, stated["heads"], *y.shape[1:]).transpose(0, 3, 1, 2)
    return y.reshape(*y.shape[:2], -1)


def _samples(start: np.float32, size: np.float32, outputs: int, ratio: int, length: int) -> tuple[Any, ...]:
    """Inputs (bins, samples, 2) on both sides of the samples of each bin along an axis, and their weights."""
    each = size / np.float32(outputs)
    count = ratio if ratio > 0 else min(max(0, math.ceil(each)), MAX_SAMPLES)
    steps = (np.arange(count, dtype=np.float64) + 0.5) * float(each) / max(1, count)
    at = float(start) + np.arange(outputs)[:, None] * float(each) + steps
    present = (at >= -1) & (at <= length)
    at = np.clip(at, 0, length - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, length - 1)
    weights = np.stack([1 - (at - low), at - low], -1) * present[..., None]
    return np.stack([low, high], -1), weights


def roi_align(stated: Attributes, x: np.ndarray, rois: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Mean, or maximum, of the bilinear samples in the bins of regions (R, 4): x0, y0, x1, y1 in units of inputs.

    Regions that are not finite give 0. As in ONNX's definition, the maximum is that of inputs times their weights.
    """
    half = stated["coordinate_transformation_mode"] == "half_pixel"
    outputs = stated["output_height"], stated["output_width"]
    y = np.zeros((len(rois), x.shape[1], *outputs))
    ends = rois.astype(np.float32) * np.float32(stated["spatial_scale"]) - np.float32(0.5 if half else 0.0)
    for number, (x0, y0, x1, y1) in enumerate(ends):
        image, sides = x[images[number]], (y1 - y0, x1 - x0)
        if not np.isfinite(sides).all():
            continue
        if not half:
            sides = tuple(np.maximum(side, np.float32(1)) for side in sides)
        (rows, row_weights), (columns, column_weights) = (
            _samples(start, side, count, stated["sampling_ratio"], length)
            for start, side, count, length in zip((y0, x0), sides, outputs, x.shape[2:], strict=True)
        )
        if not (rows.size and columns.size):
            continue
        for (p, bin_rows), (q, bin_columns) in product(enumerate(rows), enumerate(columns)):
            taken = image[:, bin_rows.ravel()[:, None], bin_columns.ravel()]
            terms = taken * row_weights[p].ravel()[:, None] * column_weights[q].ravel()
            total = terms.max((1, 2)) if stated["mode"] == "max" else terms.sum((1, 2)) * 4 / math.prod(terms.shape[1:])
            y[number, :, p, q] = total
    return y
