"""Memory in large pages for short-lived arrays of many sizes, such as weights that are folded and then packed.

NumPy requests large pages for arrays of 4 MB and more. Smaller arrays get pages of 4 KB, which takes five times as
long: 66 ms for 100 MB instead of 13 ms, on a virtual machine with Zen 4.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.memory.large_pages import CHUNK, large
from cpuconv.problem.integers import divide

SMALL = 1 << 16
"""Size in bytes below which NumPy allocates an array."""


class _Chunk(np.ndarray):
    """Memory shared by several arrays."""


class _TemporaryMemory(threading.local):
    """The chunk from which a thread's arrays are allocated; it is freed with the last of them, and never reused."""

    def __init__(self) -> None:
        self._chunk: Callable[[], _Chunk | None] = lambda: None
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        if size < SMALL:
            return np.empty(shape, dtype)
        chunk, start = self._chunk(), divide(self._used, ALIGNMENT) * ALIGNMENT
        if chunk is None or start + size > chunk.size:
            chunk, start = large(max(size, CHUNK)).view(_Chunk), 0
            self._chunk = weakref.ref(chunk)
        self._used = start + size
        return np.frombuffer(chunk.data[start : self._used], dtype).reshape(shape)


_temporary_memory = _TemporaryMemory()


def temporary(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an uninitialised array in the thread's chunk; copy it if it is to last (`is_temporary`)."""
    return _temporary_memory.take(shape, dtype)


def is_temporary(array: np.ndarray) -> bool:
    """Whether an array shares its chunk with other arrays, and so keeps their memory allocated."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, _Chunk)
