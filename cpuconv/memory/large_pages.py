"""Memory in large pages, for long-lived data that every run reads or writes completely.

With pages of 4 KB a network touches tens of thousands of pages, so their addresses are evicted from the TLB before they
are reused. Hardware prefetchers stop at the end of a page, too. Linux provides pages of 2 MB on request (transparent
huge pages, `madvise`). On other systems, memory is allocated as usual.
"""

from __future__ import annotations

import mmap
import weakref
from bisect import bisect
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from cpuconv.memory.aligned import ALIGNMENT, aligned
from cpuconv.problem.arrays import address
from cpuconv.problem.integers import divide

PAGE = 2 << 20
"""Size of a large page, in bytes."""

CHUNK = 16 * PAGE
"""Minimum allocation of a pool, in bytes; the system maps pages at first use."""

ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
"""Argument of `madvise` for large pages on Linux; None on other systems."""


def large(size: int, advice: int | None = ADVICE) -> np.ndarray:
    """Allocate `size` uninitialised bytes in large pages, aligned to one.

    Below half a page, or if large pages are unavailable, they are aligned to a cache line.
    """
    if advice is None or size < PAGE // 2:
        return aligned(size, np.uint8)
    try:
        memory = mmap.mmap(-1, (divide(size, PAGE) + 1) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(advice)
    except OSError:  # a kernel without large pages, or out of memory, which NumPy then reports
        return aligned(size, np.uint8)
    raw = np.frombuffer(memory, np.uint8)
    start = -address(raw) % PAGE
    return raw[start : start + size]


class Pool:
    """Arrays placed one after another in large pages, in the order of allocation.

    Memory of deleted arrays is reused, and a chunk is freed with its last array. Only one thread at a time may
    allocate; any thread may delete arrays.
    """

    def __init__(self, advice: int | None = ADVICE) -> None:
        self._chunks: list[_Chunk] = []
        self._gone: deque[tuple[_Chunk, int, int]] = deque()
        self._advice = advice

    def take(self, size: int) -> np.ndarray:
        """Allocate `size` uninitialised bytes, aligned to a cache line."""
        self._reclaim()
        whole = max(divide(size, ALIGNMENT), 1) * ALIGNMENT
        for chunk in reversed(self._chunks):
            start = chunk.take(whole)
            if start is not None:
                break
        else:
            chunk = _Chunk(large(max(whole, CHUNK), self._advice))
            self._chunks.append(chunk)
            start = chunk.take(whole)
            assert start is not None
        owner = np.frombuffer(chunk.memory.data[start : start + whole], np.uint8)
        weakref.finalize(owner, self._gone.append, (chunk, start, start + whole)).atexit = False
        return owner[:size]

    def _reclaim(self) -> None:
        """Reclaim the memory of deleted arrays, and free empty chunks."""
        while self._gone:
            chunk, start, stop = self._gone.popleft()
            chunk.give(start, stop)
            if chunk.empty:
                self._chunks.remove(chunk)


@dataclass(eq=False)
class _Chunk:
    """Memory of a pool, and its free spans: starts and ends, in ascending order and not adjacent."""

    memory: np.ndarray
    free: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [(0, self.memory.size)]

    @property
    def empty(self) -> bool:
        return self.free == [(0, self.memory.size)]

    def take(self, size: int) -> int | None:
        """Take the first free span of this size, and return its start; None if there is none."""
        for at, (start, stop) in enumerate(self.free):
            if stop - start >= size:
                self.free[at : at + 1] = [(start + size, stop)] if stop - start > size else []
                return start
        return None

    def give(self, start: int, stop: int) -> None:
        """Free a span, and merge it with adjacent free ones."""
        at = bisect(self.free, (start, stop))
        if at < len(self.free) and self.free[at][0] == stop:
            stop = self.free.pop(at)[1]
        if at and self.free[at - 1][1] == start:
            at -= 1
            start = self.free.pop(at)[0]
        self.free.insert(at, (start, stop))
