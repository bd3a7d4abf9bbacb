"""Methods of a resize: taps and fixed-point weights of Pillow's and OpenCV's.

Pillow's filters grow with the factor of a reduction and read every pixel. Weights have 22 fractional bits, and rows are
rounded to uint8 between the two passes (`Resample.c`). Columns are summed first where height shrinks by more than twice
as many pixels as width, as in Pillow 13.

OpenCV's linear filter has two taps at any factor and weights of 11 bits. Sums of rows keep 7 fractional bits, and each
product along columns is rounded down (`resize.cpp`). Results of these methods have Pillow's and OpenCV's bits. OpenCV's
cubic filter and its area filter for reductions compute partly in float32: results are within one step of 255.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.kernels.images.emitters import PLAIN, Arithmetic
from cpuconv.kernels.images.resize import Taps

_PILLOW = Arithmetic(shift=22, rounded=True, wide=False, tap_shift=0, last_shift=22)
_LINEAR = Arithmetic(shift=4, rounded=False, wide=True, tap_shift=16, last_shift=2, clipped=False)  # 11 bits -> 7; 2
_CUBIC = Arithmetic(shift=5, rounded=True, wide=True, tap_shift=0, last_shift=17)  # 11 bits -> 6; 17
_AREA = Arithmetic(shift=8, rounded=True, wide=True, tap_shift=0, last_shift=22, clipped=False)  # 15 bits -> 7; 22
_HAMMING = float(np.float32(0.54)), float(np.float32(0.46))  # as Pillow has them
_KEYS, _CV2_KEYS = -0.5, -0.75  # coefficients of the cubic kernels

Dense = tuple[np.ndarray, np.ndarray]  # first input of each output, which may be outside of the axis, and weights


# --- Pillow ----------------------------------------------------------------------------------------------------------


def _box(x: np.ndarray) -> np.ndarray:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _hamming(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    at = np.where(x == 0.0, 1.0, x * math.pi)
    return np.where(x == 0.0, 1.0, np.where(x >= 1.0, 0.0, np.sin(at) / at * (_HAMMING[0] + _HAMMING[1] * np.cos(at))))


def _cubic(x: np.ndarray, a: float = _KEYS) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    return np.where(x < 1.0, near, np.where(x < 2.0, (((x - 5) * x + 8) * x - 4) * a, 0.0))


def _sinc(x: np.ndarray) -> np.ndarray:
    at = np.where(x == 0.0, 1.0, x * math.pi)
    return np.where(x == 0.0, 1.0, np.sin(at) / at)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where((x >= -3.0) & (x < 3.0), _sinc(x) * _sinc(x / 3.0), 0.0)


def _pillow(filter_: Callable[[np.ndarray], np.ndarray], support: float) -> Callable[[int, int, bool], Dense]:
    def taps(size: int, outputs: int, both_shrink: bool) -> Dense:
        scale = size / outputs
        stretch = max(scale, 1.0)
        centers = (np.arange(outputs) + 0.5) * scale
        reach = support * stretch
        first = np.maximum((centers - reach + 0.5).astype(np.int64), 0)
        last = np.minimum((centers + reach + 0.5).astype(np.int64), size)
        places = np.arange(int((last - first).max()))
        weights = filter_((places + first[:, None] - centers[:, None] + 0.5) * (1.0 / stretch))
        weights *= places < (last - first)[:, None]
        weights /= _sum_in_order(weights)
        return first, np.trunc(np.copysign(0.5, weights) + weights * (1 << 22))

    return taps


def _sum_in_order(weights: np.ndarray) -> np.ndarray:
    """Sums of rows, added in order as C does."""
    total = np.zeros(len(weights))
    for column in weights.T:
        total = total + column
    return total[:, None]


def _pillow_nearest(size: int, outputs: int, both_shrink: bool) -> Dense:
    step = size / outputs
    places = np.cumsum(np.r_[step * 0.5, np.full(outputs - 1, step)])
    return np.minimum(places.astype(np.int64), size - 1), np.ones((outputs, 1))


# --- OpenCV ----------------------------------------------------------------------------------------------------------


def _cv2_step(size: int, outputs: int) -> float:
    return 1.0 / (outputs / size)


def _cv2_nearest(size: int, outputs: int, both_shrink: bool) -> Dense:
    places = np.floor(np.arange(outputs) * _cv2_step(size, outputs)).astype(np.int64)
    return np.minimum(places, size - 1), np.ones((outputs, 1))


def _cv2_places(size: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """The input at or before each output, and the distance from it, in float32."""
    places = ((np.arange(outputs) + 0.5) * _cv2_step(size, outputs) - 0.5).astype(np.float32)
    first = np.floor(places)
    return first.astype(np.int64), places - first


def _cv2_weights(weights: list[np.ndarray]) -> np.ndarray:
    return np.rint(np.stack(weights, 1).astype(np.float32) * np.float32(1 << 11))


def _cv2_linear(size: int, outputs: int, both_shrink: bool) -> Dense:
    first, after = _cv2_places(size, outputs)
    return first, _cv2_weights([np.float32(1) - after, after])


def _cv2_cubic(size: int, outputs: int, both_shrink: bool) -> Dense:
    first, after = _cv2_places(size, outputs)
    a, one = np.float32(_CV2_KEYS), np.float32(1)
    before, back = after + one, one - after
    weights = [
        ((a * before - 5 * a) * before + 8 * a) * before - 4 * a,
        ((a + 2) * after - (a + 3)) * after * after + one,
        ((a + 2) * back - (a + 3)) * back * back + one,
    ]
    return first - 1, _cv2_weights([*weights, one - weights[0] - weights[1] - weights[2]])


def _cv2_area(size: int, outputs: int, both_shrink: bool) -> Dense:
    """Means of the covered parts of pixels; linear, of other places, unless both axes shrink."""
    step = _cv2_step(size, outputs)
    if not both_shrink:
        first = np.floor(np.arange(outputs) * step).astype(np.int64)
        after = ((np.arange(outputs) + 1) - (first + 1) * (outputs / size)).astype(np.float32)
        after = np.where(after <= 0, np.float32(0), after - np.floor(after))
        return first, _cv2_weights([np.float32(1) - after, after])
    begin = np.arange(outputs) * step
    end = np.minimum(begin + step, size)
    first = np.floor(begin + 1e-9).astype(np.int64)
    places = first[:, None] + np.arange(int(np.ceil((end - first).max() - 1e-9)))
    covered = np.clip(np.minimum(places + 1, end[:, None]) - np.maximum(places, begin[:, None]), 0.0, None)
    covered /= covered.sum(1, keepdims=True)
    weights = np.rint(covered * (1 << 15))
    weights[np.arange(outputs), covered.argmax(1)] += (1 << 15) - weights.sum(1)
    return first, weights


@dataclass(frozen=True)
class Method:
    """A resize by its taps along an axis, `taps(size, outputs, both_shrink)`, and its arithmetic."""

    taps: Callable[[int, int, bool], Dense]
    arithmetic: Arithmetic


METHODS = {
    "cv2_nearest": Method(_cv2_nearest, PLAIN),
    "cv2_linear": Method(_cv2_linear, _LINEAR),
    "cv2_cubic": Method(_cv2_cubic, _CUBIC),
    "cv2_area": Method(_cv2_area, _AREA),
    "pillow_nearest": Method(_pillow_nearest, PLAIN),
    "pillow_box": Method(_pillow(_box, 0.5), _PILLOW),
    "pillow_bilinear": Method(_pillow(_triangle, 1.0), _PILLOW),
    "pillow_hamming": Method(_pillow(_hamming, 1.0), _PILLOW),
    "pillow_bicubic": Method(_pillow(_cubic, 2.0), _PILLOW),
    "pillow_lanczos": Method(_pillow(_lanczos, 3.0), _PILLOW),
}
"""Methods by the names of `Image.resize`."""


def columns_first(name: str, picture: tuple[int, int], resized: tuple[int, int]) -> bool:
    """Whether a method sums columns before rows, for a picture of (height, width)."""
    less = [own - size for own, size in zip(picture, resized, strict=True)]
    return METHODS[name].arithmetic == _PILLOW and less[0] > max(0, 2 * less[1])


@functools.lru_cache(maxsize=64)
def method_for(name: str, shrinks: bool) -> Method:
    """The method of a name; area is linear where an axis grows."""
    method = METHODS[name]
    return Method(method.taps, _LINEAR) if name == "cv2_area" and not shrinks else method


def column_taps(dense: Dense, size: int, crop: slice) -> Taps:
    """Taps along rows: inputs outside of the axis are the last one inside, with the sum of their weights."""
    first, weights = _trimmed(dense, crop)
    places = np.clip(first[:, None] + np.arange(weights.shape[1]), 0, size - 1)
    count = min(int((places[:, -1] - places[:, 0]).max()) + 1, size)
    starts = np.minimum(places[:, 0], size - count)
    merged = np.zeros((len(starts), count), np.int32)
    np.add.at(merged, (np.arange(len(starts))[:, None], places - starts[:, None]), weights)
    return Taps(starts, merged)


def row_taps(dense: Dense, size: int, crop: slice) -> tuple[Taps, np.ndarray]:
    """Taps along columns, whose starts index the second result: the rows that are read, in order.

    A row outside of the axis is a copy of the last one inside, as products are rounded one by one.
    """
    first, weights = _trimmed(dense, crop)
    read = np.unique(first[:, None] + np.arange(weights.shape[1]))
    return Taps(np.searchsorted(read, first), weights), np.clip(read, 0, size - 1)


def _trimmed(dense: Dense, crop: slice) -> Dense:
    """The taps of some outputs, without leading and trailing ones whose weights are all zero."""
    first, weights = dense[0][crop], dense[1][crop].astype(np.int32)
    needed = np.flatnonzero(weights.any(0))
    return first + needed[0], np.ascontiguousarray(weights[:, needed[0] : needed[-1] + 1])
