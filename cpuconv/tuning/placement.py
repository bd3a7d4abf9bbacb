"""Where data of a trial lie: in places in memory drawn at random, or, weights that must be cold, out of every cache.

How long a kernel takes depends on which pages its data lie in, by up to a third (lines whose addresses look alike push
one another out of a cache, and which do nobody can tell beforehand). A place is one sample of what callers will meet,
so that data move between samples of the time (Curtsinger and Berger, "STABILIZER: Statistically Sound Performance
Evaluation", ASPLOS 2013; docs/decisions/0006-tuning-and-timing.md).
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator

import numpy as np

from autotune.machine.device import fingerprint
from cpuconv.elements import F32
from cpuconv.memory.aligned import ALIGNMENT, aligned
from cpuconv.problem.integers import divide

LEAST = 256 << 10
"""Bytes in which data move, at least: 64 pages, as caches tell lines of several apart by bits of the page's number."""

MOST = 8 << 20
"""Bytes in which data move, at most: what is larger lies in no cache whose places matter."""

TIMES = 3
"""Between these: so many times the data's size, so that most of their pages are others after a move."""

OVER_CACHE = 4
"""Cold memory over the last cache: one that does not quite replace the oldest keeps some of what is twice its size."""

COLD_LIMIT = 512 << 20
"""Bytes of cold memory, at most. A larger last cache is shared by more cores than a program has, which has only a part
of it; with 512 MB of a cache said to have 480, runs took 0.94 to 1.00 of what they took with 2 GB."""

_PERIOD = 65_537  # of random weights: prime, so that no two rows or channels are alike
_SCALE = 1 / 64  # of random weights, as a layer's: sums are neither large nor denormal


class Arena:
    """Memory in which arrays lie one after another, each somewhere else; it grows to hold them."""

    def __init__(self) -> None:
        self._bytes = aligned(0, np.uint8)
        self._rng = random.Random()

    def place(self, size: int) -> np.ndarray:
        """`size` uninitialised bytes on a cache line; what was placed before may share them, unless the arena grew."""
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


def cold_weights(nbytes: int) -> Iterator[np.ndarray]:
    """Random weights of so many bytes, for ever: places of the cold memory in turn, from a random one on, so that none
    is in a cache when its turn comes."""
    memory = cold_memory()
    step = max(1, divide(nbytes, ALIGNMENT)) * ALIGNMENT // F32.bytes
    if step > memory.size:  # more than any cache holds
        memory = aligned(step)
        memory[:] = _SCALE
    count = memory.size // step
    for number in itertools.count(random.randrange(count)):
        start = number % count * step
        yield memory[start : start + nbytes // F32.bytes]


@functools.cache
def cold_memory() -> np.ndarray:
    """Random weights, OVER_CACHE times the last cache or COLD_LIMIT; shared, as filling them takes a second.

    Their values are no packed weights', which a kernel's time does not depend on; read as bfloat16, they are as large.
    """
    size = min(OVER_CACHE * max(dict(fingerprint().caches).values(), default=COLD_LIMIT), COLD_LIMIT)
    drawn = np.random.default_rng(0).standard_normal(_PERIOD, np.float32) * np.float32(_SCALE)
    bits = drawn.view(np.uint32)
    bits[:] = bits >> 16 << 16 | bits >> 16
    memory = aligned(size // F32.bytes)
    for start in range(0, memory.size, _PERIOD):
        memory[start : start + _PERIOD] = drawn[: memory.size - start]
    return memory
