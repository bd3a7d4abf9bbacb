"""What bytes stand for: scale and zero point of tensors, and weights as whole numbers with a scale a channel.

On x86 without VNNI, engines add two products of a uint8 and an int8 in sums of 16 bits, which saturate beyond 32767:
255 · (a + b) stays below where a + b ≤ 128. So that weights never saturate, whichever two of a channel meet, the two
largest of each sign add up to at most 128 in magnitude; a channel where they would not gets a larger scale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cpuconv.quantizing.ranges import STEPS

LARGEST = 127  # of weights, which are symmetric
PAIR = 128  # most that two weights of one sign add up to: 255 * 128 < 2**15
_ENDS = {np.dtype(np.uint8): (0, 255), np.dtype(np.int8): (-128, 127)}
_SUMS = 2.0**30  # of a bias, in units of a product
_ALONE = 2.0**24  # the same where all weights are 0, and nothing else decides the unit
_LEAST = np.finfo(np.float32).tiny


class Scale(NamedTuple):
    """A byte b stands for (b - zero) * scale; scale is a float32, zero has the type of the bytes."""

    scale: np.float32
    zero: np.generic

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number that a byte stands for."""
        low, high = _ENDS[self.zero.dtype]
        return float((low - int(self.zero)) * self.scale), float((high - int(self.zero)) * self.scale)


def scale_of(low: float, high: float, dtype: np.dtype) -> Scale:
    """Bytes that span a range with 0 in it."""
    first, last = _ENDS[dtype]
    scale = np.float32((high - low) / STEPS)
    if not scale >= _LEAST:
        return Scale(np.float32(1), dtype.type(first))
    zero = np.clip(np.rint(first - low / float(scale)), first, last)
    return Scale(scale, dtype.type(zero))


def bytes_of(array: np.ndarray, scale: Scale) -> np.ndarray:
    """Floats as bytes, as QuantizeLinear makes them."""
    first, last = _ENDS[scale.zero.dtype]
    return np.clip(np.rint(array / scale.scale) + int(scale.zero), first, last).astype(scale.zero.dtype)


class Weights(NamedTuple):
    """Weights as int8, of the floats' shape, with a scale for each channel along `axis`.

    The bias is int32, in units of `unit`, the scale of the input, times that of its channel.
    """

    array: np.ndarray
    scale: np.ndarray
    axis: int
    bias: np.ndarray | None
    unit: np.float32

    @property
    def floats(self) -> np.ndarray:
        """What the whole numbers stand for."""
        shape = [-1 if at == self.axis else 1 for at in range(self.array.ndim)]
        return self.array * self.scale.reshape(shape)


def weights_of(array: np.ndarray, axis: int, bias: np.ndarray | None, unit: np.float32, full_range: bool) -> Weights:
    """Weights as whole numbers, symmetric around 0.

    Parameters
    ----------
    array : numpy.ndarray
        Floats.
    axis : int
        The axis of output channels.
    bias : numpy.ndarray or None
        One float a channel; of several groups, whose channels share weights' scales, of all of them.
    unit : numpy.float32
        The scale of the input.
    full_range : bool
        Whether two weights of a channel may saturate sums of 16 bits.
    """
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
    scale = np.abs(rows).max(1, initial=0) / LARGEST
    if not full_range:
        scale = np.maximum(scale, _pairs(rows) / PAIR)
    if bias is not None:
        most = np.where(scale > 0, _SUMS, _ALONE)
        largest = np.abs(bias.astype(np.float64)).reshape(-1, len(rows)).max(0)  # of all groups
        scale = np.maximum(scale, largest / (float(unit) * most))
    scale = np.where(scale >= _LEAST, scale, 1.0).astype(np.float32)
    whole = _rounded(rows, scale)
    while not full_range and (over := _pairs(whole) > PAIR).any():  # rounding went up
        scale[over] *= np.float32(1 + 1 / PAIR)
        whole = _rounded(rows, scale)
    shape = np.moveaxis(array, axis, 0).shape
    sums = None if bias is None else _in_units(bias, np.float32(unit) * scale)
    stored = np.ascontiguousarray(np.moveaxis(whole.astype(np.int8).reshape(shape), 0, axis))
    return Weights(stored, scale, axis, sums, np.float32(unit))


def _in_units(bias: np.ndarray, units: np.ndarray) -> np.ndarray:
    """A bias as int32, groups of channels one after another."""
    whole = np.rint(bias.astype(np.float64) / np.tile(units, len(bias) // len(units)))
    return whole.clip(-(2**31), 2**31 - 1).astype(np.int32)


def _rounded(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(rows / scale[:, None]), -LARGEST, LARGEST)


def _pairs(rows: np.ndarray) -> np.ndarray:
    """The largest magnitude of a sum of two numbers of one sign, in each row."""
    if rows.shape[1] < 2:
        return np.abs(rows).sum(1)
    ends = np.sort(rows, 1) if rows.shape[1] < 4 else np.partition(rows, (1, -2), 1)
    low, high = ends[:, :2].clip(max=0).sum(1), ends[:, -2:].clip(min=0).sum(1)
    return np.maximum(-low, high)
