"""How many threads a network is worth: programs for 1, 2, 4, … threads, of which the fastest is kept.

By the model, or timed on random data where the strategy is to time (`"profile"`). The model knows the operators' own
times, that some of them have too little work to be shared, and what it costs workers to begin and end together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from autotune.machine.cores import thread_counts
from cpuconv.conv.choice.target import Target
from cpuconv.conv.choice.ways import Convolution
from cpuconv.graph.ir import Value
from cpuconv.graph.ops.drawing import timed_draws
from cpuconv.kernels.binding.processor import join_seconds
from cpuconv.memory.arenas import Arenas
from cpuconv.network.running.building import build
from cpuconv.network.running.executable import CompiledNode, Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.layout import NetworkPlan

_SECONDS, _ROUNDS = 0.3, 15  # of timing all counts together; most of its rounds


def fastest(
    laid_out: Callable[[Target], NetworkPlan], target: Target, packed: Packed, arenas: Arenas
) -> tuple[NetworkPlan, Executable]:
    """The network for at most the target's threads, and how it is laid out."""
    made = {}
    for count in thread_counts(target.threads):
        asked = replace(target, threads=count)
        network_plan = laid_out(asked)
        made[count] = network_plan, build(network_plan, asked, packed, arenas)
    programs = {count: executable for count, (_, executable) in made.items()}
    if target.strategy == "profile":
        with timed_draws():
            seconds = timed(programs)
    else:
        seconds = {count: modelled(each) for count, each in programs.items()}
    return made[min(seconds, key=lambda count: (seconds[count], count))]


def modelled(executable: Executable) -> float:
    """Seconds of a run by the model; operators that references compute are left out."""
    threads = executable.target.threads
    saved = sum(len(each) - 1 for each in executable.sets)
    return sum(_seconds(work, threads) for work in executable.works) - saved * join_seconds(threads)


def _seconds(work: CompiledNode, threads: int) -> float:
    offer = work.node_plan.offer
    if offer is None:
        return 0.0
    joins = sum(step.parts > 0 for step in work.steps)
    alone = not joins and not isinstance(offer.detail, Convolution)  # whose estimate is for the threads it takes
    return offer.seconds * (threads if alone else 1) + joins * join_seconds(threads)


def timed(programs: Mapping[int, Executable]) -> dict[int, float]:
    """Median seconds of a run of each program, run in turn on random data."""
    arrays = {
        count: tuple([random_array(value) for value in values.values()] for values in (each.inputs, each.outputs))
        for count, each in programs.items()
    }
    for count, each in programs.items():
        each.run(*arrays[count])
    found: dict[int, list[float]] = {count: [] for count in programs}
    end = time.perf_counter() + _SECONDS
    while len(found[1]) < _ROUNDS and (not found[1] or time.perf_counter() < end):
        for count, each in programs.items():
            begun = time.perf_counter()
            each.run(*arrays[count])
            found[count].append(time.perf_counter() - begun)
    import statistics  # takes 5 ms

    return {count: statistics.median(seconds) for count, seconds in found.items()}


def random_array(value: Value, seed: int = 0) -> np.ndarray:
    """Elements for a tensor of known shape: normal floats, or small integers."""
    rng = np.random.default_rng(seed)
    shape, dtype = tuple(int(size or 0) for size in value.shape or ()), np.dtype(value.dtype)
    return (rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)).astype(dtype)
