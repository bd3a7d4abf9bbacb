"""Speed probe: a fixed amount of work, whose time shows whether the machine's speed has just changed.

Half of it is arithmetic in registers, which takes longer at a lower clock. Half writes to L2, which takes longer where
another program shares the core or has just evicted its data. Writes show this more reliably than reads. While a
Winograd candidate took a third longer, writes took a sixth to two fifths longer, reads of L2 4 to 19%, arithmetic 1 to
5% (docs/decisions/0006-tuning-and-timing.md).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.machine.device import fingerprint
from cpuconv.elements import F32
from cpuconv.isa import current
from cpuconv.kernels.streams.probe import ProbeTile, fma_peak, write_all
from cpuconv.memory.aligned import aligned
from cpuconv.runtime import Kernel, Program
from cpuconv.runtime.code.cache import Code
from cpuconv.tuning.probes import fma_tile, read_tile

SECONDS = 50e-6  # time of a run: long compared with the clock's resolution, short compared with timed runs
_PAGE = 4096
_FIRST_TURNS = 1000
_SAMPLES = 20


@functools.lru_cache(maxsize=8)
def speed_probe(threads: int) -> Callable[[], None]:
    """Return a run of multiply-adds in registers and stores to L2, about 50 µs in total, on each of the threads."""
    parts = [part for part in (_fma(threads), _write(threads)) if part is not None]
    for part in parts:
        alone = Program([part.row(_FIRST_TURNS)], 1)
        part.turns = max(
            1, round(_FIRST_TURNS * SECONDS / len(parts) / min(_seconds(alone.run) for _ in range(_SAMPLES)))
        )
    return Program([part.row(part.turns) for part in parts], threads, [part.arrays for part in parts]).run


@dataclass
class _Part:
    kernel: Kernel
    tile: ProbeTile
    words: dict[str, int]
    arrays: tuple[np.ndarray, ...]  # owners of the memory whose addresses are in `words`
    turns: int = 0

    def row(self, turns: int) -> tuple[Code, np.ndarray, int]:
        return self.kernel.entry(self.tile), self.kernel.pack(self.words | {"turns": turns}), 1


def _fma(threads: int) -> _Part:
    isa = current()
    tile = fma_tile(isa)
    seeds = np.full((tile.chains + 2, isa.lanes), 0.5, np.float32)
    sums = aligned((threads, _PAGE // F32.bytes))
    words = {"seeds": seeds.ctypes.data, "y": sums.ctypes.data, "y_step": _PAGE}
    return _Part(fma_peak, tile, words, (seeds, sums))


def _write(threads: int) -> _Part | None:
    """Return stores to L2; None if the size of L2 is unknown."""
    caches = dict(fingerprint().caches)
    if not caches.get("L2"):
        return None
    isa = current()
    tile = read_tile(isa)
    size = caches["L2"] // 4 // tile.step * tile.step  # leaves most other data in L2
    buffer, seed = aligned((threads, size // F32.bytes)), aligned(isa.lanes)
    buffer[:], seed[:] = 0, 1
    words = {"y": buffer.ctypes.data, "y_step": size, "size": size, "seed": seed.ctypes.data}
    return _Part(write_all, tile, words, (buffer, seed))


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
