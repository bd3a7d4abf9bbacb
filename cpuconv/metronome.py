"""A loop of known length: how long it takes tells whether the machine's speed has just changed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from cpuconv.isa import current
from cpuconv.micro.probe import fma_peak
from cpuconv.probes import fma_tile
from cpuconv.runtime import Program
from cpuconv.solvers.base import aligned

SECONDS = 50e-6  # of a run: long against the clock's steps, short against what is timed
_PAGE = 4096
_FIRST_TURNS = 1000
_SAMPLES = 20


@functools.lru_cache(maxsize=8)
def metronome(threads: int) -> Callable[[], None]:
    """A chain of multiplications and additions in registers, some 50 µs long, on each of the threads."""
    turns = _FIRST_TURNS
    run = _loop(1, turns)
    turns = max(1, round(turns * SECONDS / min(_seconds(run) for _ in range(_SAMPLES))))
    return _loop(threads, turns)


def _loop(threads: int, turns: int) -> Callable[[], None]:
    isa = current()
    tile = fma_tile(isa)
    seeds = np.full((tile.chains + 2, isa.lanes), 0.5, np.float32)  # x → x/2 + 1/2 stays near 1
    sums = aligned((threads, _PAGE // 4))
    words = {"seeds": seeds.ctypes.data, "y": sums.ctypes.data, "y_step": _PAGE, "turns": turns}
    program = Program([(fma_peak.entry(tile), fma_peak.pack(words), True)], threads)

    def run(kept: tuple[np.ndarray, ...] = (seeds, sums)) -> None:
        program.run()

    return run


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
