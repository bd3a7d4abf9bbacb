"""Memory in large pages, for what lasts and is read or written whole in every run.

With pages of 4 KB a network touches tens of thousands of them, and their addresses leave the CPU's table of pages
(TLB) before they are used again; and prefetchers stop at the end of a page. Linux gives pages of 2 MB to memory that
asks for them (transparent huge pages, `madvise`). Elsewhere memory is as any other.
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
"""Bytes of a large page."""

CHUNK = 16 * PAGE
"""Bytes that a pool asks for at once, at least; the system gives them as they are first used."""

ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
"""What Linux is told of such memory; None elsewhere."""


def large(size: int, advice: int | None = ADVICE) -> np.ndarray:
    """`size` uninitialised bytes, in large pages from the start of one on; below half a page, or without `advice` that
    the system takes, on a cache line."""
    if advice is None or size < PAGE // 2:
        return aligned(size, np.uint8)
    try:
        memory = mmap.mmap(-1, (divide(size, PAGE) + 1) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(advice)
    except OSError:  # a kernel without large pages, or no memory: whatever NumPy makes of it
        return aligned(size, np.uint8)
    raw = np.frombuffer(memory, np.uint8)
    start = -address(raw) % PAGE
    return raw[start : start + size]


class Pool:
    """Arrays one after another in large pages, in the order in which they are asked for.

    The room of arrays that are gone is given to later ones, and a chunk is freed with the last array in it. To be asked
    by one thread at a time; arrays may go in any.
    """

    def __init__(self, advice: int | None = ADVICE) -> None:
        self._chunks: list[_Chunk] = []
        self._gone: deque[tuple[_Chunk, int, int]] = deque()
        self._advice = advice

    def take(self, size: int) -> np.ndarray:
        """`size` uninitialised bytes that start on a cache line."""
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
        """Take back the room of arrays that are gone, and let go of chunks without arrays."""
        while self._gone:
            chunk, start, stop = self._gone.popleft()
            chunk.give(start, stop)
            if chunk.empty:
                self._chunks.remove(chunk)


@dataclass(eq=False)
class _Chunk:
    """Memory of a pool, and the spans of it that are free: starts and ends, in order and apart."""

    memory: np.ndarray
    free: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [(0, self.memory.size)]

    @property
    def empty(self) -> bool:
        return self.free == [(0, self.memory.size)]

    def take(self, size: int) -> int | None:
        """Where the first free span of that size starts, which is taken; None where there is none."""
        for at, (start, stop) in enumerate(self.free):
            if stop - start >= size:
                self.free[at : at + 1] = [(start + size, stop)] if stop - start > size else []
                return start
        return None

    def give(self, start: int, stop: int) -> None:
        """Make a span free again, and one with those beside it."""
        at = bisect(self.free, (start, stop))
        if at < len(self.free) and self.free[at][0] == stop:
            stop = self.free.pop(at)[1]
        if at and self.free[at - 1][1] == start:
            at -= 1
            start = self.free.pop(at)[0]
        self.free.insert(at, (start, stop))
