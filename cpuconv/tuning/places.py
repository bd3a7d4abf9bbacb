"""Places in memory, drawn at random.

How long a kernel takes depends on which pages its data lie in, by up to a third (lines whose addresses look alike push
one another out of a cache, and which do nobody can tell beforehand). A place is one sample of what callers will meet,
so that data move between samples of the time (Curtsinger and Berger, "STABILIZER: Statistically Sound Performance
Evaluation", ASPLOS 2013; docs/decisions/0014-places.md, 0016-own-pace.md).
"""

from __future__ import annotations

import random

import numpy as np

from cpuconv.solvers.shared.base import ALIGNMENT, aligned

LEAST = 256 << 10
"""Bytes in which data move, at least: 64 pages, as caches tell lines of several apart by bits of the page's number."""

MOST = 8 << 20
"""Bytes in which data move, at most: what is larger lies in no cache whose places matter."""

TIMES = 3
"""Between these: so many times the data's size, so that most of their pages are others after a move."""


class Room:
    """Memory in which arrays lie one after another, each somewhere else; it grows to hold them."""

    def __init__(self) -> None:
        self._bytes = aligned(0, np.uint8)
        self._rng = random.Random()

    def place(self, size: int) -> np.ndarray:
        """`size` bytes, uninitialised, on a cache line. What was placed before may share them, unless the room grew."""
        wanted = size + min(max(LEAST, TIMES * size), MOST)
        if self._bytes.size < wanted:
            self._bytes = aligned(wanted, np.uint8)
        start = ALIGNMENT * self._rng.randrange((self._bytes.size - size) // ALIGNMENT)
        return self._bytes[start : start + size]

    def copy(self, array: np.ndarray) -> np.ndarray:
        """A copy of a contiguous array."""
        copy = self.place(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy
