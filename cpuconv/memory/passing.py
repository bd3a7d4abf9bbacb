"""Memory in large pages for arrays of many sizes that go soon, such as weights that are folded and then packed.

NumPy asks for large pages for arrays of 4 MB and more; smaller ones are given page after page of 4 KB, which takes five
times as long: 66 ms for 100 MB, on a Zen 4 that is a guest, against 13.
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
"""Bytes below which an array is NumPy's own."""


class _Chunk(np.ndarray):
    """Memory that several arrays share."""


class _Passing(threading.local):
    """The chunk that a thread's arrays are taken from; it is freed with the last of them, and no room is used again."""

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


_passing = _Passing()


def passing(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array, beside others that the thread asked for; what lasts is to be copied (`is_passing`)."""
    return _passing.take(shape, dtype)


def is_passing(array: np.ndarray) -> bool:
    """Whether an array keeps others' memory."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, _Chunk)
