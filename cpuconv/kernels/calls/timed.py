"""A kernel that calls another kernel and records start and end times, for `cpuconv profile --html`.

Kernels and the launcher are unchanged: each row of a program is replaced by one that calls the kernel timed.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.problem.arrays import address
from cpuconv.runtime.atomics import call_5, call_kernel, put
from cpuconv.runtime.code.cache import Code
from cpuconv.runtime.kernel import kernel

_LINE = 8  # int64 per record, one cache line per part: worker + 1, then seconds and nanoseconds of its start and end
_WORKER, _START, _END = 0, 1, 3
Rows = list[tuple[Code, np.ndarray, int]]


@dataclass(frozen=True)
class TimedTile:
    """Empty tile: one kernel serves all calls."""


@kernel("entry block clock which log")
def timed(tile, worker, before, part, parts, args):
    """Run a part of the kernel `entry` with the arguments `block`; record its start and end times at `log`."""
    line = args.log + 64 * part
    call_5(args.clock, a=args.which, b=line + 8, c=0, d=0, e=0)  # clock_gettime ignores the last three arguments
    call_kernel(args.entry, worker, before, part, parts, args.block)
    call_5(args.clock, a=args.which, b=line + 24, c=0, d=0, e=0)
    put(line, 0, worker + 1)


class Stopwatch:
    """Makes rows of a program that record the times of their parts."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._logs: list[np.ndarray] = []
        self._kept: list[object] = []

    def timed(self, rows: Rows) -> Rows:
        """Wrap rows in timed ones."""
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
        """Workers of each row, with start and end times in seconds; clears the records: call it once per run."""
        return [_spans(log) for log in self._logs]

    def part_seconds(self) -> list[np.ndarray]:
        """Seconds of each part of each row."""
        return [_times(log, _END) - _times(log, _START) for log in self._logs]


def now() -> float:
    """Current time of the clock that timed rows read, in seconds."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _spans(log: np.ndarray) -> list[tuple[int, float, float]]:
    done = log[log[:, _WORKER] > 0]
    workers = done[:, _WORKER] - 1
    start, end = _times(done, _START), _times(done, _END)
    found = [
        (int(worker), float(start[workers == worker].min()), float(end[workers == worker].max()))
        for worker in np.unique(workers)
    ]
    log[:] = 0
    return found


def _times(log: np.ndarray, at: int) -> np.ndarray:
    """Times of a column of records, in seconds."""
    return log[:, at] + 1e-9 * log[:, at + 1]
