"""Coordinates of a resized axis: input positions of outputs, their rounding, and weights of the inputs around them.

Source: ONNX operator Resize.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Axis(NamedTuple):
    """A resized axis: index, input and output size, scale (given, or the ratio of the sizes), and the cropped range."""

    axis: int
    size: int
    outputs: int
    scale: float
    start: float
    end: float


def _align_corners(at: np.ndarray, one: Axis) -> np.ndarray:
    return at * (one.size - 1) / max(1, one.outputs - 1)


def _half_pixel(at: np.ndarray, one: Axis) -> np.ndarray:
    return (at + 0.5) / one.scale - 0.5


def _half_pixel_symmetric(at: np.ndarray, one: Axis) -> np.ndarray:
    number = at.dtype.type  # with float32 positions, ONNX Runtime rounds the offset to float32, but not their sum
    adjustment = number(one.outputs) / (number(one.scale) * number(one.size))
    offset = number(one.size / 2) * (1 - adjustment)
    return (float(offset) + (at.astype(np.float64) + 0.5) / float(number(one.scale)) - 0.5).astype(at.dtype)


def _pytorch_half_pixel(at: np.ndarray, one: Axis) -> np.ndarray:
    return _half_pixel(at, one) if one.outputs > 1 else 0 * at


def _crop(at: np.ndarray, one: Axis) -> np.ndarray:
    last = one.size - 1
    if one.outputs == 1:
        return 0 * at + (one.start + one.end) / 2 * last
    return one.start * last + at * (one.end - one.start) * last / (one.outputs - 1)


COORDINATES: dict[str, Callable[[np.ndarray, Axis], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": lambda at, one: at / one.scale,
    "tf_half_pixel_for_nn": lambda at, one: (at + 0.5) / one.scale,
    "tf_crop_and_resize": _crop,
}

_TIE = 1e-6  # tolerance of a fraction of one half, as in ONNX Runtime


def _fraction(at: np.ndarray) -> np.ndarray:
    """Fraction of positions; exactly a half where it is within the tolerance."""
    fraction = at - np.floor(at)
    return np.where(np.abs(fraction - 0.5) <= _TIE, 0.5, fraction)


ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.floor(at) + (_fraction(at) > 0.5),
    "round_prefer_ceil": lambda at: np.floor(at) + (_fraction(at) >= 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _triangle(distance: np.ndarray, a: float) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(distance))


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' convolution kernel (1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


KERNELS = {"linear": (_triangle, 1), "cubic": (_cubic, 2)}  # with half of their width, in inputs


def _neighbours(attributes: Mapping[str, Any], one: Axis, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of every output and their weights, each (outputs, taps). Out of range, the edge is read."""
    kernel, half = KERNELS[attributes["mode"]]
    narrow = min(one.scale, 1.0) if attributes["antialias"] else 1.0
    reach = math.ceil(half / narrow) if places.size else 0  # a scale without outputs may be arbitrarily small
    inputs = np.floor(places)[:, None] + np.arange(1 - reach, 1 + reach)
    weights = kernel((inputs - places[:, None]) * narrow, attributes["cubic_coeff_a"])
    if attributes["exclude_outside"]:
        weights = np.where((inputs < 0) | (inputs >= one.size), 0, weights)
    total = weights.sum(1, keepdims=True)
    return np.clip(inputs, 0, one.size - 1).astype(int), weights / np.where(total == 0, 1, total)


def sources(attributes: Mapping[str, Any], one: Axis) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Inputs (outputs, taps) of every output and their weights (None: one, a copy); and the outputs' coordinates."""
    # For rounding, the float32 coordinate decides, as in ONNX Runtime.
    outputs = np.arange(one.outputs, dtype=np.float32 if attributes["mode"] == "nearest" else np.float64)
    places = COORDINATES[attributes["coordinate_transformation_mode"]](outputs, one)
    if attributes["mode"] != "nearest":
        return *_neighbours(attributes, one, places), places
    taken = np.clip(ROUNDING[attributes["nearest_mode"]](places), 0, one.size - 1).astype(int)
    return taken[:, None], None, places
