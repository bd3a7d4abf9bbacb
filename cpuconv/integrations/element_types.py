"""Names of tensor element types: ONNX's numbers, ONNX Runtime's texts, NumPy's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.errors import ArgumentTypeError, must

_TYPES: tuple[tuple[int, str, str], ...] = (  # ONNX's number, ONNX Runtime's name, NumPy's
    (1, "float", "float32"),
    (2, "uint8", "uint8"),
    (3, "int8", "int8"),
    (4, "uint16", "uint16"),
    (5, "int16", "int16"),
    (6, "int32", "int32"),
    (7, "int64", "int64"),
    (9, "bool", "bool"),
    (10, "float16", "float16"),
    (11, "double", "float64"),
    (12, "uint32", "uint32"),
    (13, "uint64", "uint64"),
    (14, "complex64", "complex64"),
    (15, "complex128", "complex128"),
)
_TEXTS = {np.dtype(name): f"tensor({text})" for _, text, name in _TYPES}
_DTYPES: dict[object, np.dtype] = {number: np.dtype(name) for number, _, name in _TYPES}
_DTYPES |= {text: dtype for dtype, text in _TEXTS.items()}
_NUMBERS = {np.dtype(name): number for number, _, name in _TYPES}


def text_of(dtype: np.dtype | None) -> str:
    """Return the type as text, such as ``tensor(float)``; types that NumPy lacks use their own name."""
    return (
        _TEXTS.get(dtype, f"tensor({'undefined' if dtype is None else dtype.name})") if dtype else "tensor(undefined)"
    )


def number_of(dtype: np.dtype) -> int:
    """Return ONNX's number of a type; 0 (undefined) for an unknown type."""
    return _NUMBERS.get(dtype, 0)


def dtype_of(given: Any) -> np.dtype:
    """Return the NumPy dtype for a NumPy type, ONNX's number, or a text such as ``tensor(float)``.

    Raises
    ------
    ArgumentTypeError
        `given` is none of them.
    """
    try:
        return _DTYPES[given] if isinstance(given, (int, str)) and given in _DTYPES else np.dtype(given)
    except TypeError as error:
        raise ArgumentTypeError(must("element_type", "a NumPy type or ONNX's number of one", repr(given))) from error
