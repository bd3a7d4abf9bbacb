"""Memory in large pages, for what lasts and is read or written whole in every run.

With pages of 4 KB a network touches tens of thousands of them, and their addresses leave the CPU's table of pages
(TLB) before they are used again; and prefetchers stop at the end of a page. Linux gives pages of 2 MB to memory that
asks for them (transparent huge pages, `madvise`). Elsewhere memory is as any other.
"""

from __future__ import annotations

import mmap

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

    Memory is freed a chunk at a time, with the last array in it. To be asked by one thread at a time.
    """

    def __init__(self, advice: int | None = ADVICE) -> None:
        self._free, self._advice = np.empty(0, np.uint8), advice

    def take(self, size: int) -> np.ndarray:
        """`size` uninitialised bytes that start on a cache line."""
        whole = divide(size, ALIGNMENT) * ALIGNMENT
        if whole > self._free.size:
            self._free = large(max(whole, CHUNK), self._advice)
        taken, self._free = self._free[:size], self._free[whole:]
        return taken
