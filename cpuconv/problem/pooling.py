"""Pooling in NumPy: maximum, mean or norm of windows or of whole planes, from ONNX attributes.

Source: ONNX operators MaxPool, AveragePool, LpPool and their global forms, and MaxUnpool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.elements import lowest
from cpuconv.problem.window import Window

Attributes = Mapping[str, Any]


def window_of(attributes: Attributes, shape: tuple[int, ...]) -> Window:
    """Window over the spatial axes of an input."""
    return Window.of(attributes, shape[2:], attributes["kernel_shape"])


def max_pool(attributes: Attributes, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum of each window, and its index in the flattened input; padding is never the maximum."""
    window = window_of(attributes, x.shape)
    places = np.arange(math.prod(window.sizes)).reshape(window.sizes, order="F" if attributes["storage_order"] else "C")
    y = np.zeros((*x.shape[:2], *window.outputs), x.dtype)
    where = np.full(y.shape, -1)
    for _, out, read in window.taps():
        seen = x[read]
        better = (where[out] < 0) | (seen > y[out]) | np.isnan(seen)
        y[out] = np.where(better, seen, y[out])
        where[out] = np.where(better, places[read], where[out])
    planes = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(window.sizes))
    return y, planes * places.size + where


def _sum(x: np.ndarray, window: Window) -> np.ndarray:
    y = np.zeros((*x.shape[:2], *window.outputs))
    for _, out, read in window.taps():
        y[out] += x[read]
    return y


def counts(attributes: Attributes, window: Window) -> np.ndarray:
    """Divisor of the sum over each window."""
    return window.counts(padded=bool(attributes["count_include_pad"]))


def average_pool(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Sum over the window, divided by the number of its taps inside the input (or inside input and padding)."""
    window = window_of(attributes, x.shape)
    return _sum(x, window) / counts(attributes, window)


def lp_pool(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Compute (sum over the window of |x|^p)^(1/p)."""
    p = attributes["p"]
    return _sum(np.abs(x) ** p, window_of(attributes, x.shape)) ** (1 / p)


def _spatial(x: np.ndarray) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def global_max_pool(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Maximum of each plane; the lowest number for an empty plane."""
    return x.max(_spatial(x), keepdims=True, initial=lowest(x.dtype))


def global_average_pool(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Mean of each plane."""
    return x.mean(_spatial(x), keepdims=True)


def global_lp_pool(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Compute (sum over each plane of |x|^p)^(1/p)."""
    return (np.abs(x) ** attributes["p"]).sum(_spatial(x), keepdims=True) ** (1 / attributes["p"])


def unpooled_shape(attributes: Attributes, shape: tuple[int, ...], stated: Sequence[int] | None) -> tuple[int, ...]:
    """Output shape of MaxUnpool: the stated one, or the smallest that the windows cover."""
    if stated is not None:
        return tuple(stated)
    kernel = attributes["kernel_shape"]
    strides, pads = attributes["strides"] or [1] * len(kernel), attributes["pads"] or [0] * 2 * len(kernel)
    columns = zip(shape[2:], kernel, strides, pads[: len(kernel)], pads[len(kernel) :], strict=True)
    return (*shape[:2], *((size - 1) * step - near - far + width for size, width, step, near, far in columns))


def max_unpool(
    attributes: Attributes, x: np.ndarray, places: np.ndarray, stated: np.ndarray | None = None
) -> np.ndarray:
    """Write the elements at their indices in the flattened output, zeros elsewhere: the inverse of MaxPool."""
    y = np.zeros(unpooled_shape(attributes, x.shape, None if stated is None else stated.tolist()), x.dtype)
    y.reshape(-1)[places] = x
    return y
