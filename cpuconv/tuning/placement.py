"""Placement of a trial's data: at random addresses, or, for cold weights, outside all caches.

The time of a kernel depends on the pages of its data, by up to a third: cache lines with similar addresses evict one
another, and which ones do is unpredictable. Callers' data may be anywhere, so data move to a new random place between
samples of the time (Curtsinger and Berger, "STABILIZER: Statistically Sound Performance Evaluation", ASPLOS 2013;
docs/decisions/0006-tuning-and-timing.md).
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

MIN_RANGE = 256 << 10
"""Min. range in which data move, in bytes: 64 pages, as the set index of some caches has bits of the page number."""

MAX_RANGE = 8 << 20
"""Max. range in which data move, in bytes: larger data fit in no cache for which the place matters."""

TIMES = 3
"""Range between these limits as a multiple of the data's size, so that most pages differ after a move."""

OVER_CACHE = 4
"""Size of cold memory, as a multiple of the last cache. Without strict LRU, a cache of half the size keeps a part."""

COLD_LIMIT = 512 << 20
"""Max. size of cold memory, in bytes. A larger last cache is shared by more cores than a program has, so the program
gets only a part of it. With 512 MB on a CPU that reports a cache of 480 MB, runs took 0.94 to 1.00 of their time
with 2 GB."""

_PERIOD = 65_537  # period of random weights: prime, so that no two rows or channels are equal
_SCALE = 1 / 64  # scale of random weights, as in a usual layer: sums are neither large nor subnormal


class Arena:
    """Growing memory that gives each array a random place."""

    def __init__(self) -> None:
        self._bytes = aligned(0, np.uint8)
        self._rng = random.Random()

    def place(self, size: int) -> np.ndarray:
        """Return `size` uninitialised bytes, aligned to a cache line; they may overlap others unless it grew."""
        wanted = size + min(max(MIN_RANGE, TIMES * size), MAX_RANGE)
        if self._bytes.size < wanted:
            self._bytes = aligned(wanted, np.uint8)
        start = ALIGNMENT * self._rng.randrange((self._bytes.size - size) // ALIGNMENT)
        return self._bytes[start : start + size]

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of a contiguous array."""
        copy = self.place(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy


def cold_weights(nbytes: int) -> Iterator[np.ndarray]:
    """Yield random weights of `nbytes` bytes, endlessly: places of the cold memory in turn, from a random start.

    None is in a cache when its turn comes.
    """
    memory = cold_memory()
    step = max(1, divide(nbytes, ALIGNMENT)) * ALIGNMENT // F32.bytes
    if step > memory.size:  # larger than any cache
        memory = aligned(step)
        memory[:] = _SCALE
    count = memory.size // step
    for number in itertools.count(random.randrange(count)):
        start = number % count * step
        yield memory[start : start + nbytes // F32.bytes]


@functools.cache
def cold_memory() -> np.ndarray:
    """Return random weights, OVER_CACHE times the last cache or COLD_LIMIT; shared, as filling them takes 1 s.

    Their values are not packed weights, as a kernel's time does not depend on them. As bfloat16, they are as large.
    """
    size = min(OVER_CACHE * max(dict(fingerprint().caches).values(), default=COLD_LIMIT), COLD_LIMIT)
    drawn = np.random.default_rng(0).standard_normal(_PERIOD, np.float32) * np.float32(_SCALE)
    bits = drawn.view(np.uint32)
    bits[:] = bits >> 16 << 16 | bits >> 16
    memory = aligned(size // F32.bytes)
    for start in range(0, memory.size, _PERIOD):
        memory[start : start + _PERIOD] = drawn[: memory.size - start]
    return memory
