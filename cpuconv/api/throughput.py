"""Selection of threads per run for the highest throughput of concurrent runs: `compile(..., hint="throughput")`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from autotune.machine.cores import thread_counts
from cpuconv.api.queue import Queue
from cpuconv.graph.ir import Value
from cpuconv.network.model import Model
from cpuconv.network.thread_count import random_array

_SECONDS, _ROUNDS = 0.2, 3  # of a measurement, and measurements per count; the best one counts


def most_runs_per_second(compile_for: Callable[[int], Model], cores: int) -> Model:
    """Return the model whose concurrent runs on all cores have the highest throughput.

    Streams of 1, 2, 4, … threads each are measured in turns, on random data. With open sizes, runs have one thread.

    Parameters
    ----------
    compile_for : Callable[[int], Model]
        Function that compiles the network for a number of threads per run.
    cores : int
        Threads of all streams together.
    """
    one = compile_for(1)
    values = [Value(port.shape, port.dtype) for port in one.inputs]
    if cores == 1 or not all(value.concrete for value in values):
        one.set_streams(cores)
        return one
    made = {1: one} | {count: compile_for(count) for count in thread_counts(cores)[1:]}
    feed: dict[str, Any] = {port.name: random_array(value) for port, value in zip(one.inputs, values, strict=True)}
    feed |= {} if one.pictures is None else one.pictures.examples()
    queues = {count: Queue(model, cores // count) for count, model in made.items()}
    for queue in queues.values():
        _runs_per_second(queue, feed, 0.0)  # touches memory
    rates = dict.fromkeys(queues, 0.0)
    for _ in range(_ROUNDS):
        for count, queue in queues.items():
            rates[count] = max(rates[count], _runs_per_second(queue, feed, _SECONDS))
    best = max(rates, key=lambda count: (rates[count], -count))
    made[best].set_streams(cores // best)
    return made[best]


def _runs_per_second(queue: Queue, feed: Mapping[str, Any], seconds: float) -> float:
    """Return the throughput of runs for some seconds, at least one per stream."""
    begun, runs = time.perf_counter(), 0
    while runs < queue.streams or time.perf_counter() < begun + seconds:
        queue.submit(feed)
        runs += 1
    queue.wait()
    return runs / (time.perf_counter() - begun)
