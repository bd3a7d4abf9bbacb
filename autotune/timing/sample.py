"""A sample: the time of one run of a callable, made from several runs after its data and its stack have moved.

Other programs slow some of the runs and make none faster, and what nearly fills a cache settles there in the course of
several: of warm runs the least counts. With cold weights the median does, as the least would be the run whose weights
happened to be cached.
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

from autotune.data_classes import dataclass
from autotune.timing.stack import with_random_stack_offset

Run = Callable[[], None]
Summary = Callable[[Sequence[float]], float]

PART_SECONDS = 5e-5  # a part of a sample repeats a short run for so long: a thousand steps of the clock
PARTS = 9  # of a sample: after four to eight runs caches have settled, and more lower the least by under 1% …
SAMPLE_SECONDS = 12e-3  # … but of long runs only as many as take so long: moments at one speed last some 40 ms


def stay() -> None:
    """Move no data."""


def clock(run: Run, loops: int = 1) -> float:
    """Seconds of one run, of so many in a row."""
    start = time.perf_counter_ns()
    for _ in repeat(None, loops):
        run()
    return max(time.perf_counter_ns() - start, 1) * 1e-9 / loops


@dataclass(frozen=True)
class Entrant:
    """A callable that is timed, and how.

    Attributes
    ----------
    run : callable
    parts : int
        Of a sample.
    loops : int
        Runs in a part.
    seconds : float
        Of a run, when parts and loops were settled.
    move : callable
        Puts its data elsewhere in memory.
    summary : callable
        From the parts' seconds to those of the sample.
    """

    run: Run
    parts: int
    loops: int
    seconds: float
    move: Run = stay
    summary: Summary = min

    def sample(self) -> float:
        """Seconds of one run, on data and a stack in other places than before."""
        self.move()
        give_way()
        return self.summary(with_random_stack_offset(lambda: [clock(self.run, self.loops) for _ in range(self.parts)]))


def calibrate(run: Run, move: Run = stay, summary: Summary = min) -> Entrant:
    """Settle how many parts make a sample, and how many runs a part."""

    def least(loops: int) -> float:
        seconds = clock(run, loops)
        return min(seconds, clock(run, loops)) if seconds < SAMPLE_SECONDS else seconds

    with quiet():
        move()
        run()  # the first may still load what is compiled
        loops, seconds = 1, least(1)
        while loops * seconds < PART_SECONDS:
            loops = min(math.ceil(1.1 * PART_SECONDS / seconds), 10 * loops)
            seconds = least(loops)
    return Entrant(run, max(1, min(PARTS, round(SAMPLE_SECONDS / seconds))), loops, seconds, move, summary)


def give_way() -> None:
    """Let other programs have the core now rather than in the middle of a sample."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """The median and the median distance from it, in seconds."""
    middle = statistics.median(samples)
    return middle, statistics.median(abs(sample - middle) for sample in samples)
