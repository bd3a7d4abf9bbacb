"""`cpuconv benchmark`: latency and throughput of a model, by concurrent callers, next to other engines.

Engines run in turns of half a second, so that a change of the CPU's clock or load meets all of them.
"""

from __future__ import annotations

import csv
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from baselib.screen import Column, Report, Table
from baselib.text import count_of, number
from cpuconv.api.queue import Queue
from cpuconv.cli.other_engines import Engine, Run
from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.network.model import Model
from cpuconv.network.sizes.batches import Batches

TURN = 0.5  # seconds that an engine runs before the next one's turn
PERCENTILES = (50, 90, 99)

_COLUMNS = (
    Column("engine", least=12),
    Column("runs", True, rank=3),
    *(Column(f"p{percentile} ms", True) for percentile in PERCENTILES),
    Column("min ms", True, rank=2),
    Column("max ms", True, rank=4),
    Column("per second", True),
    Column("× cpuconv", True, rank=1),
    Column("difference", True, rank=5),
)


@dataclass(frozen=True)
class Figures:
    """Latency and throughput of one engine.

    Attributes
    ----------
    engine : str
    runs : int
        Timed runs of all callers.
    min, p50, p90, p99, max : float
        Latency of a run, in seconds.
    per_second : float
        Items (size of the first axis of the first input) of all callers per second.
    difference : float or None
        Largest relative RMS difference of an output from cpuconv's; None for cpuconv itself.
    """

    engine: str
    runs: int
    min: float
    p50: float
    p90: float
    p99: float
    max: float
    per_second: float
    difference: float | None

    def cells(self, first: Figures) -> tuple[str, ...]:
        """The cells of the row as text; `first` has cpuconv's figures."""
        milliseconds = (self.p50, self.p90, self.p99, self.min, self.max)
        return (
            self.engine, str(self.runs), *(f"{each * 1e3:.3f}" for each in milliseconds), f"{self.per_second:.1f}",
            f"{self.p50 / first.p50:.2f}", number(self.difference, ".1e"),
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Benchmark(Report):
    """Figures of engines on one model, cpuconv first.

    Attributes
    ----------
    engines : list of Figures
    threads : int
        Threads of a run.
    streams : int
        Runs for which cores are reserved.
    callers : int
        Concurrent callers.
    batch : int
        Items of a run: size of the first axis of the first input.
    interrupted : bool
        Whether Ctrl-C ended it before its time.
    """

    engines: list[Figures]
    threads: int
    streams: int
    callers: int
    batch: int
    interrupted: bool

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    def to_csv(self) -> bytes:
        """Return a line of titles and a line per engine, in UTF-8."""
        stream = io.StringIO()
        rows = [asdict(each) for each in self.engines]
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue().encode()

    def blocks(self) -> Iterator[str | Table]:
        """The printed table and text."""
        yield Table(_COLUMNS, [each.cells(self.engines[0]) for each in self.engines])
        streams = f"{count_of(self.streams, 'stream')} of " if self.streams > 1 else ""
        yield f"{streams}{count_of(self.threads, 'thread')}, {count_of(self.callers, 'caller')}, batch of {self.batch}"
        if self.interrupted:
            yield "interrupted: figures of the runs until then"


class _Series:
    """Runs of one engine: the latencies of all, and the seconds in which they ran."""

    def __init__(self, engine: Engine, callers: int) -> None:
        self.engine = engine
        self._callers = [engine.new_caller() for _ in range(callers)]
        self.results = self._callers[0]()
        self.seconds = 0.0
        self._latencies: list[list[float]] = []

    def run_for(self, seconds: float, timed: bool = True) -> None:
        """Let all callers run the model in a loop; the first run of each is not timed.

        Raises
        ------
        Exception
            A run failed: the first error.
        """
        together = threading.Barrier(len(self._callers))
        stopped = threading.Event()
        found: list[list[float]] = [[] for _ in self._callers]
        spans: list[tuple[float, float]] = []
        errors: list[BaseException] = []

        def call(run: Run, latencies: list[float]) -> None:
            try:
                run()
                together.wait()
                first = begun = time.perf_counter()
                while begun - first < seconds and not stopped.is_set():
                    run()
                    ended = time.perf_counter()
                    latencies.append(ended - begun)
                    begun = ended
                spans.append((first, begun))
            except BaseException as error:
                errors.append(error)
                together.abort()

        workers = [
            threading.Thread(target=call, args=each, daemon=True) for each in zip(self._callers, found, strict=True)
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except KeyboardInterrupt:
            stopped.set()
            raise
        failures = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        if failures:
            raise failures[0]
        if timed:
            self._latencies += found
            self.seconds += max(end for _, end in spans) - min(begin for begin, _ in spans)

    def figures(self, batch: int, first: Mapping[str, np.ndarray] | None) -> Figures:
        """Return the figures; `first` has the outputs to compare with."""
        latencies = np.concatenate([np.array(each) for each in self._latencies])
        low, p50, p90, p99, high = map(float, np.percentile(latencies, (0, *PERCENTILES, 100)))
        differs = None if first is None else _difference(first, self.results)
        count = len(latencies)
        return Figures(self.engine.name, count, low, p50, p90, p99, high, count * batch / self.seconds, differs)


def benchmark(
    engines: Sequence[Engine],
    feed: Mapping[str, np.ndarray],
    *,
    threads: int,
    callers: int,
    streams: int = 1,
    duration: float,
    warmup: float,
    progress: Callable[[str, int, int], None] | None = None,
) -> Benchmark:
    """Time the engines in turns: `warmup` untimed seconds each, then `duration` seconds each.

    Ctrl-C ends it; figures remain if every engine has run.
    """
    batch = next((len(each) for each in feed.values() if isinstance(each, list) or each.ndim), 1)
    series = [_Series(engine, callers) for engine in engines]
    turns = max(1, round(duration / TURN))
    interrupted = False
    for each in series:
        each.run_for(warmup, timed=False)
    try:
        for turn in range(turns):
            for at, each in enumerate(series):
                if progress is not None:
                    progress("timing", turn * len(series) + at, turns * len(series))
                each.run_for(duration / turns)
    except KeyboardInterrupt:
        if not all(each.seconds for each in series):
            raise
        interrupted = True
    first = series[0].results
    figures = [each.figures(batch, first if at else None) for at, each in enumerate(series)]
    return Benchmark(figures, threads, streams, callers, batch, interrupted)


def _difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """Return the largest relative RMS difference of an output; infinity if names or shapes differ."""
    worst = 0.0
    for name, array in ours.items():
        other = theirs.get(name)
        if other is None or other.shape != array.shape:
            return np.inf
        if array.size:
            a, b = array.astype(np.float64), other.astype(np.float64)
            scale = float(np.sqrt(np.nanmean(b * b))) or 1.0
            worst = max(worst, float(np.sqrt(np.nanmean((a - b) ** 2))) / scale)
    return worst


def runs_in_streams(model: Model, streams: int) -> Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]:
    """Return a run of the model in one of so many streams, each on a core of its own where a run has one thread."""
    queue = Queue(model, streams)
    return lambda feed: queue.submit(feed).result()


def at_batch(graph: Graph, batch: int | None, sizes: Mapping[str, Sequence[int]]) -> Graph:
    """Return the graph with a first axis of `batch` where the model writes 1; `sizes` are values of `--shape`.

    Raises
    ------
    ArgumentError
        The network does not compute the items of a batch separately.
    """
    written = [name for name in graph.inputs if (graph.value(name).shape or ())[:1] == (1,)]
    if batch is None or batch == 1 or not written:
        return graph
    stated = {name: shape for name, shape in sizes.items() if name in graph.inputs}
    return Batches(graph, stated).at(batch).graph


def batch_sizes(graph: Graph, batch: int) -> dict[str, tuple[int, ...]]:
    """Return the values of `--shape` that give the first axis of every input this size.

    Raises
    ------
    ArgumentError
        An input has another first size, or is open in other axes that `--shape` must state.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for name in graph.inputs:
        value = graph.value(name)
        first, *rest = value.shape or (None,)
        others = [size for size in rest if isinstance(size, int)]
        if isinstance(first, str):
            sizes[first] = (batch,)
        elif first is not None and first != batch:
            raise ArgumentError(must("--batch", f"{first}, as {name} is {value}", batch))
        elif value.shape is None or len(others) < len(rest):
            raise ArgumentError(must("--shape", f"given in place of --batch, as {name} is {value}", "left out"))
        else:
            sizes[name] = (batch, *others)
    return sizes
