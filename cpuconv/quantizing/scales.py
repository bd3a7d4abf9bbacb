"""Quantisation parameters: scale and zero point of tensors, and int8 weights with a scale per channel.

On x86 without VNNI, engines add two products of a uint8 and an int8 in 16 bits, which saturate above 32767.
255 · (a + b) does not exceed it if a + b ≤ 128. To exclude saturation for any two weights of a channel, the two largest
of each sign have a sum of at most 128 in magnitude. A channel where that fails gets a larger scale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cpuconv.quantizing.ranges import STEPS

LARGEST = 127  # largest weight; weights are symmetric
PAIR = 128  # maximum sum of two weights of one sign: 255 * 128 < 2**15
_ENDS = {np.dtype(np.uint8): (0, 255), np.dtype(np.int8): (-128, 127)}
_SUMS = 2.0**30  # maximum bias, in units of input scale times weight scale
_ALONE = 2.0**24  # the same if all weights are 0, and only the bias decides the unit
_MIN_SCALE = np.finfo(np.float32).tiny


class Scale(NamedTuple):
    """An integer b represents (b - zero) * scale; scale is a float32, zero has the integer type."""

    scale: np.float32
    zero: np.generic

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper limit of the represented numbers."""
        low, high = _ENDS[self.zero.dtype]
        return float((low - int(self.zero)) * self.scale), float((high - int(self.zero)) * self.scale)


def scale_of(low: float, high: float, dtype: np.dtype) -> Scale:
    """Choose scale and zero point for a range that includes 0."""
    first, last = _ENDS[dtype]
    scale = np.float32((high - low) / STEPS)
    if not scale >= _MIN_SCALE:
        return Scale(np.float32(1), dtype.type(first))
    zero = np.clip(np.rint(first - low / float(scale)), first, last)
    return Scale(scale, dtype.type(zero))


def quantize_array(array: np.ndarray, scale: Scale) -> np.ndarray:
    """Quantise an array like QuantizeLinear."""
    first, last = _ENDS[scale.zero.dtype]
    return np.clip(np.rint(array / scale.scale) + int(scale.zero), first, last).astype(scale.zero.dtype)


class Weights(NamedTuple):
    """Weights as int8, in the shape of the float32 weights, with a scale for each channel along `axis`.

    The bias is int32, in units of `unit` (the scale of the input) times the channel's scale.
    """

    array: np.ndarray
    scale: np.ndarray
    axis: int
    bias: np.ndarray | None
    unit: np.float32

    @property
    def dequantized(self) -> np.ndarray:
        """Dequantised weights."""
        shape = [-1 if at == self.axis else 1 for at in range(self.array.ndim)]
        return self.array * self.scale.reshape(shape)


def weights_of(array: np.ndarray, axis: int, bias: np.ndarray | None, unit: np.float32, full_range: bool) -> Weights:
    """Quantise weights symmetrically to int8.

    Parameters
    ----------
    array : numpy.ndarray
        Floating-point weights.
    axis : int
        Axis of output channels.
    bias : numpy.ndarray or None
        One number per channel of all groups; channels of several groups share the scales of the weights.
    unit : numpy.float32
        Scale of the input.
    full_range : bool
        Whether two weights of a channel may saturate 16-bit sums.
    """
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
    scale = np.abs(rows).max(1, initial=0) / LARGEST
    if not full_range:
        scale = np.maximum(scale, _pairs(rows) / PAIR)
    if bias is not None:
        most = np.where(scale > 0, _SUMS, _ALONE)
        largest = np.abs(bias.astype(np.float64)).reshape(-1, len(rows)).max(0)  # of all groups
        scale = np.maximum(scale, largest / (float(unit) * most))
    scale = np.where(scale >= _MIN_SCALE, scale, 1.0).astype(np.float32)
    whole = _rounded(rows, scale)
    while not full_range and (over := _pairs(whole) > PAIR).any():  # rounding increased the weights
        scale[over] *= np.float32(1 + 1 / PAIR)
        whole = _rounded(rows, scale)
    shape = np.moveaxis(array, axis, 0).shape
    sums = None if bias is None else _in_units(bias, np.float32(unit) * scale)
    stored = np.ascontiguousarray(np.moveaxis(whole.astype(np.int8).reshape(shape), 0, axis))
    return Weights(stored, scale, axis, sums, np.float32(unit))


def _in_units(bias: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Quantise a bias to int32; groups of channels are consecutive."""
    whole = np.rint(bias.astype(np.float64) / np.tile(units, len(bias) // len(units)))
    return whole.clip(-(2**31), 2**31 - 1).astype(np.int32)


def _rounded(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(rows / scale[:, None]), -LARGEST, LARGEST)


def _pairs(rows: np.ndarray) -> np.ndarray:
    """Largest magnitude of a sum of two numbers of one sign, per row."""
    if rows.shape[1] < 2:
        return np.abs(rows).sum(1)
    ends = np.sort(rows, 1) if rows.shape[1] < 4 else np.partition(rows, (1, -2), 1)
    low, high = ends[:, :2].clip(max=0).sum(1), ends[:, -2:].clip(min=0).sum(1)
    return np.maximum(-low, high)
