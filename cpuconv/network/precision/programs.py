"""Programs of a network with precisions of single nodes, and their results for samples of equal sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph
from cpuconv.network.compiling import compiled
from cpuconv.network.definition import Definition
from cpuconv.network.dynamic_suffix import Tail
from cpuconv.network.model import Model
from cpuconv.network.ports import arrays_for
from cpuconv.network.program_builder import Key
from cpuconv.network.reports.explain import COPY
from cpuconv.network.reports.timing import time_works
from cpuconv.network.running.building import build
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.decisions import name_of
from cpuconv.network.selection.layout import NetworkPlan, lay_out
from cpuconv.network.selection.winners import winner
from cpuconv.network.sizes.cutting import stages

Results = dict[str, np.ndarray]
_ALONE = 15  # timed runs of each single operator
_SECONDS, _LEAST, _MOST = 1.0, 7, 500  # timing of whole runs: seconds per program, minimum and maximum of rounds


class Sized:
    """The samples with one combination of sizes, and the graph for these sizes.

    Attributes
    ----------
    graph : Graph
        The rewritten graph, without the nodes of the dynamic suffix.
    feeds : list of (list of numpy.ndarray, list of numpy.ndarray)
        For each sample, the arrays of the network's inputs, and those of its program's inputs.
    numbers : list of int
        Indices of the samples among all samples.
    """

    def __init__(self, definition: Definition, key: Key, shape_arrays: Mapping[str, np.ndarray]) -> None:
        self._definition = definition
        (self.graph, _, self._late), _ = definition.prepared(key.shapes, shape_arrays, noted=False)
        self._tails: dict[str, Tail] = {}
        self.feeds: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
        self.numbers: list[int] = []

    def laid_out(self, target: Target) -> NetworkPlan:
        """Plan layouts for a target, as `compile` does."""
        return lay_out(self.graph, target, plan=winner(self.graph, target))

    def results(self, network_plan: NetworkPlan, target: Target, packed: Packed) -> list[Results]:
        """Compute the outputs of the network for each sample."""
        executable = build(network_plan, target, packed)
        return [self._run(executable, target, arrays, given) for arrays, given in self.feeds]

    def _run(
        self, executable: Executable, target: Target, arrays: Sequence[np.ndarray], given: Sequence[np.ndarray]
    ) -> Results:
        outputs = arrays_for(executable.outputs, {}, arrays)
        executable.run(given, list(outputs.values()))
        if self._late is None:
            return outputs
        known = dict(zip(self._definition.inputs, arrays, strict=True))
        return self._tail(self._late, target).finished({**known, **outputs})

    def _tail(self, late: Graph, target: Target) -> Tail:
        """The dynamic suffix of the program; its nodes have the target's default precision."""
        if target.precision not in self._tails:

            def part(graph: Graph) -> Model:
                return compiled(graph, target, {}, self._definition.settings.rewriting)

            self._tails[target.precision] = Tail(stages(late), tuple(self._definition.outputs), part)
        return self._tails[target.precision]

    def beyond_models(self, target: Target, packed: Packed) -> dict[str, float]:
        """Measured median seconds of each node that kernels compute, minus the modelled ones; by name."""
        arrays, given = self.feeds[0]
        executable = build(self.laid_out(target), target, packed)
        outputs = list(arrays_for(executable.outputs, {}, arrays).values())
        times = np.median(time_works(executable, given, outputs, _ALONE)[0], axis=0)
        found: dict[str, float] = {}
        for work, measured in zip(executable.works, times, strict=True):
            if work.node_plan.offer is not None and work.node_plan.node.op != COPY:
                found[name_of(work.node_plan.node)] = float(measured) - work.node_plan.offer.seconds
        return found

    def runner(self, target: Target, packed: Packed) -> Runner:
        """The program for a target, with the arrays of the first sample."""
        arrays, given = self.feeds[0]
        network_plan = self.laid_out(target)
        executable = build(network_plan, target, packed)
        outputs = list(arrays_for(executable.outputs, {}, arrays).values())
        return Runner(executable, given, outputs, network_plan.seconds)


class Runner(NamedTuple):
    """A program with its input and output arrays; `seconds` is its modelled time."""

    executable: Executable
    given: list[np.ndarray]
    outputs: list[np.ndarray]
    seconds: float

    def run(self) -> None:
        """Run the program once."""
        self.executable.run(self.given, self.outputs)


def race(runners: Sequence[Runner]) -> list[float]:
    """Median time of a run of each program in seconds; programs run in turn."""
    found: list[list[float]] = [[] for _ in runners]
    for each in runners:
        each.run()
    end = time.perf_counter() + _SECONDS * len(runners)
    while len(found[-1]) < _LEAST or (len(found[-1]) < _MOST and time.perf_counter() < end):
        for each, seconds in zip(runners, found, strict=True):
            begun = time.perf_counter()
            each.run()
            seconds.append(time.perf_counter() - begun)
    return [statistics.median(seconds) for seconds in found]
