"""Resize in NumPy: sizes of the resized axes, coordinates of outputs in the input, their rounding, and weights.

Source: ONNX operator Resize. Axes are resized one by one: each output has a coordinate in the input, and is a weighted
mean of the inputs around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

_EXACT = 1 << 24  # up to here, float32 has all integers


class Axis(NamedTuple):
    """A resized axis: index, input and output size, scale (given, or the ratio of the sizes), and the cropped range."""

    axis: int
    size: int
    outputs: int
    scale: float
    start: float
    end: float

    @property
    def unchanged(self) -> bool:
        """Whether outputs are the inputs."""
        return self.scale == 1 and self.outputs == self.size and (self.start, self.end) == (0, 1)


def resized_axes(
    attributes: Mapping[str, Any],
    shape: Sequence[int],
    axes: Sequence[int],
    region: np.ndarray | None,
    scales: np.ndarray | None,
    sizes: Sequence[int] | None,
) -> list[Axis]:
    """Parameters of the axes that are resized, from ONNX attributes and operands.

    Raises
    ------
    ValueError
        The operands do not fit the axes.
    """
    lengths = [shape[axis] for axis in axes]
    if scales is not None and scales.size:
        factors = [float(scale) for scale in scales]
        _check_count(factors, axes, "scales")
        outputs = [_scaled(length, scale) for length, scale in zip(lengths, scales, strict=True)]
    elif sizes is None:
        raise ValueError("there are neither scales nor sizes")
    else:
        outputs = list(sizes)
        _check_count(outputs, axes, "sizes")
        for length, count in zip(lengths, outputs, strict=True):
            if count > 0 and not length:
                raise ValueError(f"an axis of size 0 has nothing to be resized to {count}")
        factors = [count / length if length else 1.0 for length, count in zip(lengths, outputs, strict=True)]
        policy = {"not_larger": min, "not_smaller": max}.get(attributes["keep_aspect_ratio_policy"])
        if policy:
            kept = policy((factor for factor, length in zip(factors, lengths, strict=True) if length), default=1.0)
            factors = [kept] * len(axes)
            outputs = [int(kept * length + 0.5) for length in lengths]
    starts, ends = [0.0] * len(axes), [1.0] * len(axes)
    if region is not None and region.size and attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        starts, ends = region.reshape(2, -1).tolist()
    columns = zip(axes, lengths, outputs, factors, starts, ends, strict=True)
    return [Axis(*fields) for fields in columns]


def _check_count(stated: Sequence[object], axes: Sequence[int], name: str) -> None:
    if len(stated) != len(axes):
        raise ValueError(f"there are {len(stated)} {name} for {len(axes)} axes")


def _scaled(length: int, scale: np.floating[Any]) -> int:
    """Multiply a length by a scale in the type of the scale: float32 in ONNX, float64 in PyTorch."""
    if scale.is_integer() and 0 <= length * float(scale) <= _EXACT:
        return length * int(scale)
    return int(type(scale)(length) * scale)


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


def resize(attributes: Mapping[str, Any], x: np.ndarray, axes: Sequence[Axis]) -> np.ndarray:
    """Compute weighted means of inputs around each output's coordinate; axes that shrink come first."""
    sizes = {one.axis: one.outputs for one in axes}
    shape = [sizes.get(axis, size) for axis, size in enumerate(x.shape)]
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    for one in sorted(axes, key=lambda one: one.outputs / one.size):
        if one.unchanged:
            continue
        inputs, weights, places = sources(attributes, one)
        if weights is None:
            x = np.take(x, inputs[:, 0], one.axis)
        else:
            pairs = zip(inputs.T, weights.T, strict=True)
            x = sum(np.take(x, at, one.axis) * along(weight, one.axis, x.ndim) for at, weight in pairs)
        if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
            outside = (places < 0) | (places > one.size - 1)
            x = np.where(along(outside, one.axis, x.ndim), attributes["extrapolation_value"], x)
    return x


def along(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Reshape a vector to broadcast along an axis."""
    return vector.reshape(-1, *[1] * (rank - 1 - axis))
