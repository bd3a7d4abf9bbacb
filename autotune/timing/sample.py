"""Samples: a sample is the time of one run of a callable, summarised from several runs, after its data and stack moved.

Other programs slow some of the runs and speed up none, and data that nearly fill a cache settle there over several
runs. So a sample of warm runs is their minimum. With cold weights it is the median, as the minimum would be a run whose
weights happened to be cached.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

from autotune.timing.stack import with_random_stack_offset
from baselib.data_classes import dataclass

Run = Callable[[], None]
Summary = Callable[[Sequence[float]], float]

PART_SECONDS = 5e-5  # time for which a part of a sample repeats a short run: 1000 clock ticks
PARTS = 9  # max. parts of a sample: caches settle within 4 to 8 runs, and more parts lower the minimum by under 1%
SAMPLE_SECONDS = 12e-3  # max. time of a sample of several long runs: phases of constant speed last some 40 ms


def no_move() -> None:
    """Move no data."""


def clock(run: Run, loops: int = 1) -> float:
    """Return the time of one run in seconds, averaged over `loops` runs in a row."""
    start = time.perf_counter_ns()
    for _ in repeat(None, loops):
        run()
    return max(time.perf_counter_ns() - start, 1) * 1e-9 / loops


@dataclass(frozen=True)
class Entrant:
    """A callable to be timed, with its sampling parameters.

    Attributes
    ----------
    run : callable
    parts : int
        Parts per sample.
    loops : int
        Runs per part.
    seconds : float
        Time of one run during calibration.
    move : callable
        Moves its data to another place in memory.
    summary : callable
        Computes the time of a sample from those of its parts.
    """

    run: Run
    parts: int
    loops: int
    seconds: float
    move: Run = no_move
    summary: Summary = min

    def sample(self) -> float:
        """Return the time of one run in seconds, with data and stack at other addresses than before."""
        self.move()
        yield_core()
        return self.summary(with_random_stack_offset(lambda: [clock(self.run, self.loops) for _ in range(self.parts)]))


def calibrate(run: Run, move: Run = no_move, summary: Summary = min) -> Entrant:
    """Choose the number of parts per sample, and of runs per part."""

    def least(loops: int) -> float:
        seconds = clock(run, loops)
        return min(seconds, clock(run, loops)) if seconds < SAMPLE_SECONDS else seconds

    with quiet():
        move()
        run()  # the first run may still load compiled code
        loops, seconds = 1, least(1)
        while loops * seconds < PART_SECONDS:
            loops = min(math.ceil(1.1 * PART_SECONDS / seconds), 10 * loops)
            seconds = least(loops)
    return Entrant(run, max(1, min(PARTS, round(SAMPLE_SECONDS / seconds))), loops, seconds, move, summary)


def yield_core() -> None:
    """Yield the core to other programs now rather than in the middle of a sample."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Disable the garbage collector while something is timed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median and the median absolute deviation, in seconds."""
    middle = statistics.median(samples)
    return middle, statistics.median(abs(sample - middle) for sample in samples)
