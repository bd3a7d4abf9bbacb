"""Conversion of numbers between element types, by the tables of ONNX's Cast."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_INTEGERS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}  # bits of the integer types that NumPy lacks
# Types to which the attribute `saturate` applies.
_SATURATED = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_POWERS = "float8_e8m0fnu"  # represents powers of two only
_LARGEST_POWER = 127  # largest exponent of float8e8m0; the smallest is its negative
_BIAS, _NAN = 127, 0xFF  # exponent bias and NaN code of float8e8m0
ROUND_MODES = ("up", "down", "nearest")


def is_integer(dtype: np.dtype) -> bool:
    """Whether a type is an integer type, including 2-bit and 4-bit integers."""
    return dtype.kind in "iu" or dtype.name in _INTEGERS


def limits(dtype: np.dtype) -> tuple[int, int]:
    """Smallest and largest number of an integer type."""
    info = ml_dtypes.iinfo(dtype) if dtype.name in _INTEGERS else np.iinfo(dtype)
    return int(info.min), int(info.max)


def wide(x: np.ndarray) -> np.ndarray:
    """Widen numbers of any type, without loss, to a type that NumPy computes with: an integer type, bool or float64."""
    if x.dtype.kind in "biu":
        return x
    return x.astype(np.int64 if x.dtype.name in _INTEGERS else np.float64)


def convert(x: np.ndarray, dtype: np.dtype, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """Convert numbers to another type.

    Parameters
    ----------
    x : np.ndarray
        Numbers of any type.
    dtype : np.dtype
    saturate : bool
        Whether numbers out of the range of a float8 type become its largest finite number, not infinity or NaN.
    round_mode : "up", "down" or "nearest"
        Rounding of numbers to powers of two, for float8e8m0.

    Returns
    -------
    np.ndarray
        An array of `dtype`; for a type that networks compute with, of a type that NumPy rounds to it correctly.
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
    """Drop fractions and higher bits; ONNX leaves floats out of range undefined."""
    if dtype.name not in _INTEGERS:
        return x.astype(dtype)
    unused = 8 - _INTEGERS[dtype.name]
    low = x.astype(np.int64).astype(np.uint8) << unused
    return ((low.view(np.int8) if dtype.name.startswith("int") else low) >> unused).astype(dtype)


def _nearly(x: np.ndarray) -> np.ndarray:
    """Round to odd in float32: the last bit is 1 where inexact, so that a second rounding adds no error."""
    near = x.astype(np.float32)
    exact = x.astype(np.float64)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    cut = np.where(np.abs(back) > np.abs(exact), bits - np.uint32(1), bits) | np.uint32(1)
    return np.where((back == exact) | np.isnan(exact), bits, cut).view(np.float32)


def _as_power(x: np.ndarray, dtype: np.dtype, saturate: bool, round_mode: str) -> np.ndarray:
    """Round magnitudes to powers of two; the sign of a number is ignored."""
    if round_mode not in ROUND_MODES:
        raise ValueError(f"the round_mode is {round_mode!r}, and must be one of {', '.join(ROUND_MODES)}")
    fraction, power = np.frexp(np.abs(x))  # the fraction is at least 0.5
    above = {"up": fraction > 0.5, "down": np.zeros(x.shape, bool), "nearest": fraction >= 0.75}[round_mode]
    power = np.where(fraction == 0, -_LARGEST_POWER - 1, np.where(np.isinf(x), _LARGEST_POWER + 1, power - 1 + above))
    lost = np.isnan(x) if saturate else np.isnan(x) | (np.abs(power) > _LARGEST_POWER)
    power = np.clip(power, -_LARGEST_POWER, _LARGEST_POWER)
    return np.where(lost, _NAN, power + _BIAS).astype(np.uint8).view(dtype)
