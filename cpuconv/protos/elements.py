"""Element types by their numbers in ONNX, and conversion of a tensor's elements to arrays."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

STRINGS = 8
_NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
_FIELDS = {
    "float32": "float_data", "complex64": "float_data", "float64": "double_data", "complex128": "double_data",
    "int64": "int64_data", "uint32": "uint64_data", "uint64": "uint64_data",
}  # fmt: skip  # types with a field of their own; others are in int32_data
_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2, "float6_e2m3fn": 6, "float6_e3m2fn": 6}


def _dtype(name: str) -> np.dtype | None:
    """Return the type of NumPy or ml_dtypes with this name; None where an old version of ml_dtypes lacks it."""
    found = getattr(ml_dtypes, name, None) if not hasattr(np, name) else name
    return None if found is None else np.dtype(found)


DTYPES: dict[int, np.dtype] = {number: dtype for number, name in _NAMES.items() if (dtype := _dtype(name)) is not None}
"""Element types by number, without strings."""
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def size(tensor: Any) -> int:
    """Return the size of a tensor's elements in bytes; elements below 8 bits are packed.

    Raises
    ------
    ValueError
        A size is negative, or the type is unknown.
    """
    if min(tensor.dims, default=0) < 0:
        raise ValueError(f"its shape is {list(tensor.dims)}")
    dtype = _of(tensor)
    return -(-math.prod(tensor.dims) * _BITS.get(dtype.name, 8 * dtype.itemsize) // 8)


def array(tensor: Any, raw: Any = None) -> np.ndarray:
    """Return the elements of a tensor; a view of raw data of whole bytes.

    Parameters
    ----------
    tensor : TensorProto
    raw : buffer or None
        Raw data of the elements, if stored outside the message.

    Raises
    ------
    ValueError
        The number of elements does not match the shape, or the type is unknown.
    """
    dtype, count = _of(tensor), math.prod(tensor.dims)
    size(tensor)
    if tensor.HasField("segment"):
        raise ValueError("it is a segment")
    if raw is None and tensor.HasField("raw_data"):
        raw = tensor.raw_data
    bits = _BITS.get(dtype.name, 8)
    if raw is not None:
        if bits < 8:
            return _unpacked(np.frombuffer(raw, np.uint8), bits, count).view(dtype).reshape(tensor.dims)
        return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(tensor.dims)
    field = _FIELDS.get(dtype.name, "int32_data")
    if field != "int32_data":
        stored = {"float_data": np.float32, "double_data": np.float64}.get(field) or np.dtype(field[: -len("_data")])
        stated = np.asarray(getattr(tensor, field), stored)
        return (stated.view(dtype) if dtype.kind == "c" else stated.astype(dtype)).reshape(tensor.dims)
    low = np.asarray(tensor.int32_data, np.int32).astype(f"u{dtype.itemsize}")
    if bits in (2, 4):
        low = _unpacked(low, bits, count)
    elif bits < 8:
        low = low & (1 << bits) - 1
    return low.view(dtype).reshape(tensor.dims)


def _of(tensor: Any) -> np.dtype:
    if tensor.data_type not in DTYPES:
        raise ValueError(f"its elements are of the type {tensor.data_type}")
    return DTYPES[tensor.data_type]


def _unpacked(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack elements of `bits` bits to one byte each.

    Raises
    ------
    ValueError
        There are fewer than `count`.
    """
    if data.size * 8 < count * bits:
        raise ValueError(f"{count} elements of {bits} bits do not fit into {data.size} bytes")
    if 8 % bits:
        single = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
        return np.packbits(single, axis=1, bitorder="little").ravel()
    each = 8 // bits
    found = np.empty(data.size * each, np.uint8)
    for at in range(each):
        found[at::each] = data >> at * bits & (1 << bits) - 1
    return found[:count]
