"""The fastest number of threads for a network: build programs for 1, 2, 4, … threads, and keep the fastest.

The cost model decides, or timing on random data with strategy `"profile"`. The model includes the times of operators,
that some have too little work to be divided, and the cost of starting and joining workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from autotune.machine.cores import thread_counts
from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.target import Target
from cpuconv.functions.draws import timed_draws
from cpuconv.graph.ir import Value
from cpuconv.kernels.binding.processor import join_seconds
from cpuconv.memory.arenas import Arenas
from cpuconv.network.running.building import build
from cpuconv.network.running.executable import CompiledNode, Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.layout import NetworkPlan

_SECONDS, _ROUNDS = 0.3, 15  # time limit for timing all counts together, and maximum number of rounds


def fastest(
    plan_layout: Callable[[Target], NetworkPlan], target: Target, packed: Packed, arenas: Arenas
) -> tuple[NetworkPlan, Executable]:
    """The plan and the executable with the fastest number of threads, at most the target's."""
    made = {}
    for count in thread_counts(target.threads):
        asked = replace(target, threads=count)
        network_plan = plan_layout(asked)
        made[count] = network_plan, build(network_plan, asked, packed, arenas)
    programs = {count: executable for count, (_, executable) in made.items()}
    if target.strategy == "profile":
        with timed_draws():
            seconds = timed(programs)
    else:
        seconds = {count: modelled(each) for count, each in programs.items()}
    return made[min(seconds, key=lambda count: (seconds[count], count))]


def modelled(executable: Executable) -> float:
    """Modelled time of a run, in seconds; operators that references compute are not counted."""
    threads = executable.target.threads
    saved = sum(len(each) - 1 for each in executable.groups)
    return sum(_seconds(operation, threads) for operation in executable.operations) - saved * join_seconds(threads)


def _seconds(operation: CompiledNode, threads: int) -> float:
    offer = operation.node_plan.offer
    if offer is None:
        return 0.0
    joins = sum(step.parts > 0 for step in operation.steps)
    alone = not joins and not isinstance(offer.detail, LayoutCandidate)  # a convolution's estimate includes its threads
    return offer.seconds * (threads if alone else 1) + joins * join_seconds(threads)


def timed(programs: Mapping[int, Executable], limit: float = _SECONDS, least: int = 1) -> dict[int, float]:
    """Median time of a run per program and its key, in seconds; programs run in turn on random data.

    Rounds end after `limit` seconds, but not before `least` of them.
    """
    arrays = {
        count: tuple([random_array(value) for value in values.values()] for values in (each.inputs, each.outputs))
        for count, each in programs.items()
    }
    for count, each in programs.items():
        each.run(*arrays[count])
    found: dict[int, list[float]] = {count: [] for count in programs}
    end = time.perf_counter() + limit
    first = next(iter(found.values()))
    while len(first) < least or (len(first) < _ROUNDS and time.perf_counter() < end):
        for count, each in programs.items():
            begun = time.perf_counter()
            each.run(*arrays[count])
            found[count].append(time.perf_counter() - begun)
    import statistics  # deferred: takes 5 ms

    return {count: statistics.median(seconds) for count, seconds in found.items()}


def random_array(value: Value, seed: int = 0) -> np.ndarray:
    """Random elements for a tensor of known shape: normally distributed floats, or integers 0 and 1."""
    rng = np.random.default_rng(seed)
    shape, dtype = tuple(int(size or 0) for size in value.shape or ()), np.dtype(value.dtype)
    return (rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)).astype(dtype)
