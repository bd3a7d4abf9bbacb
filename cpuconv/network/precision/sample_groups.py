"""Programs of a network with precisions of single nodes, and their results for samples of equal sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph
from cpuconv.network.compiling import compiled
from cpuconv.network.definition import Definition
from cpuconv.network.dynamic_suffix import DynamicSuffix
from cpuconv.network.model import Model
from cpuconv.network.program_builder import Key
from cpuconv.network.reports.explain import COPY
from cpuconv.network.reports.timing import time_operations
from cpuconv.network.running.building import build
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.decisions import name_of
from cpuconv.network.selection.layout import NetworkPlan, lay_out
from cpuconv.network.selection.winners import winner
from cpuconv.network.sizes.cutting import stages

Results = dict[str, np.ndarray]
_ALONE = 15  # timed runs of each single operator
_SECONDS, _MIN_RUNS, _MAX_RUNS = 1.0, 7, 500  # timing of whole runs: seconds per program, minimum and maximum of rounds


class SampleGroup:
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
        (self.graph, _, self._suffix_graph), _ = definition.prepared(key.shapes, shape_arrays, noted=False)
        self._suffixes: dict[str, DynamicSuffix] = {}
        self.feeds: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
        self.numbers: list[int] = []

    def plan_layout(self, target: Target) -> NetworkPlan:
        """Plan layouts for a target, as `compile` does."""
        return lay_out(self.graph, target, plan=winner(self.graph, target))

    def results(self, network_plan: NetworkPlan, target: Target, packed: Packed) -> Iterator[Results]:
        """Yield the outputs of the network for each sample."""
        executable = build(network_plan, target, packed)
        for arrays, given in self.feeds:
            yield self._run(executable, target, arrays, given)

    def _run(
        self, executable: Executable, target: Target, arrays: Sequence[np.ndarray], given: Sequence[np.ndarray]
    ) -> Results:
        outputs = executable.output_arrays.new()
        executable.run(given, list(outputs.values()))
        if self._suffix_graph is None:
            return outputs
        known = dict(zip(self._definition.inputs, arrays, strict=True))
        return self._suffix(self._suffix_graph, target).finished({**known, **outputs})

    def _suffix(self, graph: Graph, target: Target) -> DynamicSuffix:
        """The dynamic suffix of the program; its nodes have the target's default precision."""
        if target.precision not in self._suffixes:

            def part(graph: Graph) -> Model:
                return compiled(graph, target, {}, self._definition.settings.rewriting)

            self._suffixes[target.precision] = DynamicSuffix(stages(graph), tuple(self._definition.outputs), part)
        return self._suffixes[target.precision]

    def beyond_models(self, target: Target, packed: Packed) -> dict[str, float]:
        """Measured median seconds of each node that kernels compute, minus the modelled ones; by name."""
        arrays, given = self.feeds[0]
        executable = build(self.plan_layout(target), target, packed)
        outputs = list(executable.output_arrays.new().values())
        times = np.median(time_operations(executable, given, outputs, _ALONE)[0], axis=0)
        found: dict[str, float] = {}
        for operation, measured in zip(executable.operations, times, strict=True):
            if operation.node_plan.offer is not None and operation.node_plan.node.op != COPY:
                found[name_of(operation.node_plan.node)] = float(measured) - operation.node_plan.offer.seconds
        return found

    def runner(self, target: Target, packed: Packed) -> Runner:
        """The program for a target, with the arrays of the first sample."""
        arrays, given = self.feeds[0]
        network_plan = self.plan_layout(target)
        executable = build(network_plan, target, packed)
        outputs = list(executable.output_arrays.new().values())
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
    while len(found[-1]) < _MIN_RUNS or (len(found[-1]) < _MAX_RUNS and time.perf_counter() < end):
        for each, seconds in zip(runners, found, strict=True):
            begun = time.perf_counter()
            each.run()
            seconds.append(time.perf_counter() - begun)
    return [statistics.median(seconds) for seconds in found]
