"""Timing of a network: single operators, whole runs, and the timeline of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.kernels.calls.timed import Stopwatch, now
from cpuconv.network.running.caller import Host
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.recording import Recording


@dataclass(frozen=True)
class Span:
    """Time that a worker spent on a node, in seconds from the start of the run; `work` is the index of the node."""

    work: int
    worker: int
    start: float
    end: float


@dataclass(frozen=True)
class Watched:
    """A timed run: its duration in seconds, and its spans."""

    seconds: float
    spans: list[Span]


def time_works(
    executable: Executable, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Measure seconds of each node, (runs, works), and of whole runs, (runs,), in turn."""
    hosts = iter(segment for segment in executable.segments if isinstance(segment, Host))
    threads = executable.target.threads
    single = [next(hosts) if work.host else Recording.of(work.steps, threads) for work in executable.works]
    apart, whole = executable.caller_in_place(single), executable.caller_in_place()
    for caller in (apart, whole):
        caller.point(arrays, outputs)
        caller.run()
    seconds, totals = np.zeros((runs, len(single))), np.zeros(runs)
    for turn in range(runs):
        for at, call in enumerate(apart.calls):
            start = time.perf_counter()
            call(None)
            seconds[turn, at] = time.perf_counter() - start
        start = time.perf_counter()
        whole.run()
        totals[turn] = time.perf_counter() - start
    return seconds, totals


def watch_run(
    executable: Executable, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], runs: int
) -> Watched:
    """Record the timelines of `runs` runs with a `Stopwatch`, and return that of median duration."""
    watch = Stopwatch(executable.target.threads)
    caller = executable.caller_in_place(watch=watch)
    caller.point(arrays, outputs)
    caller.run()
    seen = []
    for _ in range(runs):
        watch.spans()
        begun = now()
        told = caller.watched()
        seen.append((now() - begun, begun, told, watch.spans()))
    seconds, begun, told, rows = sorted(seen, key=lambda each: each[0])[runs // 2]
    spans, later, hosts = [], iter(rows), iter(told)
    for at, work in enumerate(executable.works):
        done = [next(hosts)] if work.host else [span for _ in work.steps for span in next(later)]
        spans += [Span(at, worker, start - begun, end - begun) for worker, start, end in done]
    return Watched(seconds, spans)
