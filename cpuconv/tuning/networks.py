"""Timing of whole networks with the current tuning."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

from cpuconv.conv.choice.target import PRECISION_F32, Target
from cpuconv.graph.ir import Graph, Value
from cpuconv.isa import current
from cpuconv.network.compiling import compiled
from cpuconv.network.model import Model
from cpuconv.network.problems.compiled import with_batch
from cpuconv.network.thread_count import random_array
from cpuconv.reading.onnx_reader import read

_SECONDS, _MAX_RUNS = 0.5, 200  # limits of timing a network: seconds, runs


def time_networks(
    source: str,
    threads: int,
    batches: Sequence[int] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    precision: str = PRECISION_F32,
) -> list[tuple[str, int, float]]:
    """Return (name, threads, median seconds of a run) of a model per batch, on random data; see `problems_of`."""
    times = []
    for name, graph, shapes in sized(source, batches, inputs):
        model = compiled(graph, Target(current(), threads, "cached", precision=precision), shapes)
        times.append((name, threads, _median_seconds(model)))
    return times


def sized(
    source: str, batches: Sequence[int] = (), inputs: Mapping[str, Sequence[int]] | None = None
) -> Iterator[tuple[str, Graph, dict[str, tuple[int, ...]]]]:
    """Yield (name, graph, input shapes) of a model for each batch; sizes as for `problems_of`."""
    for batch in batches or (None,):
        graph = read(source)
        name = graph.name if batch is None else f"{graph.name}, batch {batch}"
        yield name, graph, with_batch(graph, batch, inputs or {})


def _median_seconds(model: Model) -> float:
    feed = {port.name: random_array(Value(port.shape, port.dtype)) for port in model.inputs}
    model.run(feed)
    out = model.run(feed)
    seconds: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(seconds) < _MAX_RUNS and (not seconds or time.perf_counter() < end):
        start = time.perf_counter()
        model.run(feed, out)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
