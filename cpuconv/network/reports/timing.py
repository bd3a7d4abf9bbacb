"""Timing of a network: single operators, whole runs, and the timeline of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.kernels.calls.timed import Stopwatch, now
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.execution_context import Host
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


def time_operations(
    executable: Executable, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Measure seconds of each node, (runs, operations), and of whole runs, (runs,), in turn."""
    hosts = iter(segment for segment in executable.segments if isinstance(segment, Host))
    threads = executable.target.threads
    single = [
        next(hosts) if operation.host else Recording.of(operation.steps, threads) for operation in executable.operations
    ]
    apart, whole = executable.context_in_place(single), executable.context_in_place()
    for context in (apart, whole):
        context.point(arrays, outputs)
        context.run()
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
    context = executable.context_in_place(watch=watch)
    context.point(arrays, outputs)
    context.run()
    seen = []
    for _ in range(runs):
        watch.spans()
        begun = now()
        told = context.watched()
        seen.append((now() - begun, begun, told, watch.spans()))
    seconds, begun, told, rows = sorted(seen, key=lambda each: each[0])[runs // 2]
    spans, later, hosts = [], iter(rows), iter(told)
    for at, operation in enumerate(executable.operations):
        done = [next(hosts)] if operation.host else [span for _ in operation.steps for span in next(later)]
        spans += [Span(at, worker, start - begun, end - begun) for worker, start, end in done]
    return Watched(seconds, spans)
