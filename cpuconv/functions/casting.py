"""Numbers of one element type as those of another, as the tables of ONNX's Cast say."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_INTEGERS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}  # bits of those that NumPy lacks
_SATURATED = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")  # as attributes say
_POWERS = "float8_e8m0fnu"  # powers of two alone
_LARGEST_POWER = 127  # of float8e8m0; the smallest is its negative
_BIAS, _NAN = 127, 0xFF  # of float8e8m0 in memory
ROUND_MODES = ("up", "down", "nearest")


def is_integer(dtype: np.dtype) -> bool:
    """Whether a type is one of integers, those of less than a byte among them."""
    return dtype.kind in "iu" or dtype.name in _INTEGERS


def limits(dtype: np.dtype) -> tuple[int, int]:
    """The smallest and the largest number of a type of integers."""
    info = ml_dtypes.iinfo(dtype) if dtype.name in _INTEGERS else np.iinfo(dtype)
    return int(info.min), int(info.max)


def wide(x: np.ndarray) -> np.ndarray:
    """Numbers of any type in one that NumPy computes with and that holds them: integers, bool, or float64."""
    if x.dtype.kind in "biu":
        return x
    return x.astype(np.int64 if x.dtype.name in _INTEGERS else np.float64)


def convert(x: np.ndarray, dtype: np.dtype, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """Numbers as those of another type.

    Parameters
    ----------
    x : np.ndarray
        Numbers of any type.
    dtype : np.dtype
    saturate : bool
        Whether numbers beyond the ends of a float8 type become these ends, instead of infinities and NaN.
    round_mode : "up", "down" or "nearest"
        How numbers become powers of two, of float8e8m0.

    Returns
    -------
    np.ndarray
        Of `dtype`; where that is one that networks compute with, of a type that NumPy rounds to it correctly.
    """
    x = wide(x)
    if dtype.kind == "b":
        return x != 0
    if is_integer(dtype):
        return _as_integer(x, dtype)
    if dtype.name == _POWERS:
        return _as_power(x.astype(np.float64), dtype, saturate, round_mode)
    if dtype.name in _SATURATED and saturate:
        largest = float(ml_dtypes.finfo(dtype).max)
        x = np.clip(x.astype(np.float64), -largest, largest)
    if dtype.kind == "f" and dtype.name not in _SATURATED:
        return x
    return _nearly(x) if dtype.name == "bfloat16" else _nearly(x).astype(dtype)


def _as_integer(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Without fractions and without the higher bits; of floats beyond the ends ONNX says nothing."""
    if dtype.name not in _INTEGERS:
        return x.astype(dtype)
    unused = 8 - _INTEGERS[dtype.name]
    low = x.astype(np.int64).astype(np.uint8) << unused
    return ((low.view(np.int8) if dtype.name.startswith("int") else low) >> unused).astype(dtype)


def _nearly(x: np.ndarray) -> np.ndarray:
    """Numbers as float32, whose last bit is 1 where that is not exact: rounding them again makes no second error."""
    near = x.astype(np.float32)
    exact = x.astype(np.float64)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    cut = np.where(np.abs(back) > np.abs(exact), bits - np.uint32(1), bits) | np.uint32(1)
    return np.where((back == exact) | np.isnan(exact), bits, cut).view(np.float32)


def _as_power(x: np.ndarray, dtype: np.dtype, saturate: bool, round_mode: str) -> np.ndarray:
    """The powers of two around the magnitudes of numbers; a negative number has none, and counts as if it were not."""
    if round_mode not in ROUND_MODES:
        raise ValueError(f"the round_mode is {round_mode!r}, and must be one of {', '.join(ROUND_MODES)}")
    fraction, power = np.frexp(np.abs(x))  # the fraction is at least a half
    above = {"up": fraction > 0.5, "down": np.zeros(x.shape, bool), "nearest": fraction >= 0.75}[round_mode]
    power = np.where(fraction == 0, -_LARGEST_POWER - 1, np.where(np.isinf(x), _LARGEST_POWER + 1, power - 1 + above))
    lost = np.isnan(x) if saturate else np.isnan(x) | (np.abs(power) > _LARGEST_POWER)
    power = np.clip(power, -_LARGEST_POWER, _LARGEST_POWER)
    return np.where(lost, _NAN, power + _BIAS).astype(np.uint8).view(dtype)
