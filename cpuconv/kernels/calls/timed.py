"""A kernel with the times before and after it: what `cpuconv profile --html` runs instead of a network's rows.

Kernels stay as they are, and so does the launcher: each row of a program is replaced by one that calls it.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.problem.arrays import address
from cpuconv.runtime.atomics import call_5, call_kernel, put
from cpuconv.runtime.code.cache import Code
from cpuconv.runtime.kernel import kernel

_LINE = 8  # words of a part's record, a cache line: worker + 1, then seconds and nanoseconds at its start and its end
_WORKER, _START, _END = 0, 1, 3
Rows = list[tuple[Code, np.ndarray, int]]


@dataclass(frozen=True)
class TimedTile:
    """There is one for all kernels."""


@kernel("entry block clock which log")
def timed(tile, worker, before, part, parts, args):
    """A part of the kernel `entry` with the arguments `block`, and when it began and ended, at `log`."""
    line = args.log + 64 * part
    call_5(args.clock, args.which, line + 8, 0, 0, 0)  # of five words it takes two
    call_kernel(args.entry, worker, before, part, parts, args.block)
    call_5(args.clock, args.which, line + 24, 0, 0, 0)
    put(line, 0, worker + 1)


class Stopwatch:
    """Rows of a program that note the times of their parts."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._logs: list[np.ndarray] = []
        self._kept: list[object] = []

    def timed(self, rows: Rows) -> Rows:
        """Rows that do the same, and note when."""
        clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
        entry = timed.entry(TimedTile())
        made: Rows = []
        for code, block, each in rows:
            log = np.zeros((max(1, each * self._threads), _LINE), np.int64)
            words = {"entry": code.address_for(self._kept), "block": address(block), "log": address(log)}
            self._kept.append(block)
            self._logs.append(log)
            made.append((entry, timed.pack({**words, "clock": clock, "which": time.CLOCK_MONOTONIC}), each))
        return made

    def spans(self) -> list[list[tuple[int, float, float]]]:
        """Of each row its workers, with the seconds when they began and ended; to be read once after a run."""
        return [_spans(log) for log in self._logs]


def now() -> float:
    """The time of the clock that rows look at, in seconds."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _spans(log: np.ndarray) -> list[tuple[int, float, float]]:
    done = log[log[:, _WORKER] > 0]
    workers = done[:, _WORKER] - 1
    start, end = (done[:, at] + 1e-9 * done[:, at + 1] for at in (_START, _END))
    found = [
        (int(worker), float(start[workers == worker].min()), float(end[workers == worker].max()))
        for worker in np.unique(workers)
    ]
    log[:] = 0
    return found
