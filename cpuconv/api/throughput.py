"""Selection of threads per run for the highest throughput of concurrent runs: `compile(..., hint="throughput")`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from autotune.machine.cores import thread_counts
from cpuconv.api.queue import Queue
from cpuconv.graph.ir import Value
from cpuconv.network.batched_model import BatchedModel
from cpuconv.network.model import Model
from cpuconv.network.thread_count import random_array

_SECONDS, _ROUNDS = 0.2, 3  # of a measurement, and measurements per count; the best one counts


def most_runs_per_second(compile_for: Callable[[int], Model], cores: int) -> Model:
    """Return the model whose concurrent runs on all cores compute the most items per second.

    Streams of 1, 2, 4, … threads each are measured in turns, on random data, with each batch size of a model that has
    several; these get the times of concurrent runs. With open sizes, runs have one thread.

    Parameters
    ----------
    compile_for : Callable[[int], Model]
        Function that compiles the network for a number of threads per run.
    cores : int
        Threads of all streams together.
    """
    one = compile_for(1)
    feeds = _feeds(one)
    if not feeds or (cores == 1 and len(feeds) == 1):
        one.set_streams(cores)
        return one
    made = {1: one} | {count: compile_for(count) for count in thread_counts(cores)[1:]}
    queues = {count: Queue(model, cores // count) for count, model in made.items()}
    rates = {(count, items): 0.0 for count in made for items in feeds}
    for seconds in (0.0, *[_SECONDS] * _ROUNDS):  # the first turn touches memory
        for count, items in rates:
            found = _runs_per_second(queues[count], feeds[items], seconds)
            rates[count, items] = max(rates[count, items], found) if seconds else 0.0
    threads, _ = max(rates, key=lambda at: (rates[at] * at[1], -at[0]))
    best, streams = made[threads], cores // threads
    best.set_streams(streams)
    if isinstance(best, BatchedModel):
        best.set_seconds({items: streams / rates[threads, items] for items in feeds})
    return best


def _feeds(model: Model) -> dict[int, dict[str, Any]]:
    """Random feeds by number of items; empty if other sizes are open."""
    feeds: dict[int, dict[str, Any]] = {}
    for items in model.batches or [1]:
        values = [Value(port.shape, port.dtype) for port in model.inputs]
        if isinstance(model, BatchedModel):
            values = [model.at(port, items) for port in model.inputs]
        if all(value.concrete for value in values):
            feeds[items] = {port.name: random_array(value) for port, value in zip(model.inputs, values, strict=True)}
            examples = {} if model.pictures is None else model.pictures.examples()
            feeds[items] |= {name: each[:1] * items if model.batches else each for name, each in examples.items()}
    return feeds


def _runs_per_second(queue: Queue, feed: Mapping[str, Any], seconds: float) -> float:
    """Return the throughput of runs for some seconds, at least one per stream."""
    begun, runs = time.perf_counter(), 0
    while runs < queue.streams or time.perf_counter() < begun + seconds:
        queue.submit(feed)
        runs += 1
    queue.wait()
    return runs / (time.perf_counter() - begun)
