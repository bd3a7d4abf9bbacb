"""Arrays that are aligned to cache lines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cpuconv.problem.arrays import address

ALIGNMENT = 64
"""Size of a cache line, in bytes."""
_SMALL = 4096  # bytes; vectors across cache lines then take less time than alignment
_BYTE = np.dtype(np.uint8)


def aligned(shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
    """Allocate an uninitialised array, aligned to a cache line."""
    dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, _BYTE)
    return np.ndarray(shape, dtype, raw, -address(raw) % ALIGNMENT)


def new_array(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """Allocate an uninitialised array of `size` bytes; if it is large, aligned to a cache line."""
    return np.empty(shape, dtype) if size <= _SMALL else aligned(shape, dtype)
