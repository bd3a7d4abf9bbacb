"""Races between plans of a network: whole runs timed like candidates of a problem, the fastest plan stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autotune.machine.device import fingerprint
from autotune.store.rows import Row, RowLimits
from autotune.store.store import Store
from autotune.timing.compare import MIN_ROUNDS
from autotune.timing.sample import clock
from autotune.tuning import search
from autotune.tuning.effort import EFFORTS
from autotune.workload import Candidate, Rejected
from baselib.locks import lazy
from cpuconv.conv.choice.target import PRECISION_BF16, PRECISION_F16, PRECISION_F32, Target
from cpuconv.graph.ir import Graph
from cpuconv.graph.ops.base import is_float
from cpuconv.isa import current
from cpuconv.memory.aligned import aligned
from cpuconv.network.ports import sizes
from cpuconv.network.running.building import build
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection import winners
from cpuconv.network.selection.layout import plans
from cpuconv.network.sizes.prepared import Rewriting, prepared
from cpuconv.network.thread_count import random_array
from cpuconv.problem.reference import relative_error
from cpuconv.tuning.networks import sized
from cpuconv.tuning.speed_probe import speed_probe

MAX_DURATION = 8.0  # time limit of a race between slow programs, in multiples of an effort's seconds
_RUNS = search.MIN_VISITS * (3 + MIN_ROUNDS)  # min. runs of a plan: first run, calibration, check, then timed rounds
_ERRORS = {PRECISION_F32: 1e-3, PRECISION_F16: 0.25, PRECISION_BF16: 0.25}
"""Max. difference between the outputs of two plans: algorithms and rounding may differ in every layer."""


class Raced(NamedTuple):
    """Result of a race: network, threads, plans that ran, fastest plan, and the first plan's time over its time."""

    name: str
    threads: int
    plans: int
    plan: str
    gain: float


def race_networks(
    source: str,
    threads: int,
    store: Store,
    *,
    batches: Sequence[int] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    precision: str = PRECISION_F32,
    effort: str = "quick",
    again: bool = True,
) -> Iterator[Raced]:
    """Race the plans of a model for each batch, and store the results; skip a network with a single plan.

    Parameters
    ----------
    source, threads, batches, inputs, precision
        As for `cpuconv.network.problems.compiled.problems_of`.
    effort : str
        A key of `autotune.tuning.effort.EFFORTS`: the limit of a race, in addition to building the programs.
    again : bool
        Whether to race networks that already have a winner.
    """
    for name, graph, shapes in sized(source, batches, inputs):
        target = Target(current(), threads, "cached", precision=precision)
        race = Race(prepared(graph, shapes, Rewriting()).graph, target)
        asked = RowLimits.of(race)
        if not again and store.best(fingerprint().key, race.key, asked) is not None:
            continue
        race.shorten(MAX_DURATION * EFFORTS[effort].seconds)
        row = search.profile(race, race.key, store, effort=effort) if len(race.layouts) > 1 else None
        known = {each.candidate: each for each in store.rows(fingerprint().key, race.key) if each.is_timed}
        if row is not None:
            yield Raced(name, threads, len(race.layouts), row.candidate, known[race.first].median / row.median)


class Race:
    """A network as a problem of the tuner, its plans as candidates (`autotune.workload.Searchable`).

    Attributes
    ----------
    key : str
    layouts : dict of str to NetworkPlan
        Layout plans by name; the plan that wins ties first.
    sources : frozenset of str
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        self.key, self.sources = winners.key_of(graph, target), frozenset({winners.sources()})
        self.layouts = {laid.plan: laid for laid in plans(graph, target)}
        self.first = next(iter(self.layouts))
        self._target = target
        self._programs: dict[str, Executable] = {}
        self._packed = Packed()
        self._inputs = [random_array(graph.value(name)) for name in graph.inputs]

    def shorten(self, seconds: float) -> None:
        """Drop the plans that the models find slowest, until runs of all plans take at most `seconds`."""
        if len(self.layouts) > 1:
            most = max(1, int(seconds / (_RUNS * clock(self._first_run.run))))
            ranked = sorted(self.layouts, key=lambda name: (name != self.first, self.layouts[name].seconds))
            self.layouts = {name: self.layouts[name] for name in ranked[:most]}

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list[Rejected]]:
        """Return the plans within the effort's limit, as candidates."""
        afforded = [*self.layouts.values()][: EFFORTS[effort].candidates]
        return [Candidate(laid.plan, 0.0, laid.seconds, 0, "standard") for laid in afforded], []

    def sources_of(self, name: str) -> str:
        """Return the hash of all kernel sources."""
        return next(iter(self.sources))

    def kernels_hash(self, key: str, name: str) -> str:
        """Return a hash of the kernel calls of a plan's convolutions and matrix multiplications."""
        return winners.plan_hash(self.layouts[name])

    def same_kernels(self, row: Row) -> bool:
        """Whether a plan's row was timed with kernels identical to the current ones."""
        return row.candidate in self.layouts and row.kernels == self.kernels_hash(row.problem, row.candidate) != ""

    def compile(self, key: str, name: str) -> None:
        """Build the program of a plan; plans share packed weights."""
        self._program(name)

    def prepare(self, key: str, name: str, weights: str = "warm") -> Run:
        """Return the program of a plan with new memory for intermediate values and outputs."""
        return Run(self._program(name), self._inputs, self._first_run.outputs, _ERRORS[self._target.precision])

    def speed_probe(self, key: str) -> Callable[[], None]:
        """Return the speed probe for the network's number of threads."""
        return speed_probe(self._target.threads)

    @lazy
    def _first_run(self) -> Run:
        return Run(self._program(self.first), self._inputs)

    def _program(self, name: str) -> Executable:
        if name not in self._programs:
            self._programs[name] = build(self.layouts[name], self._target, self._packed)
        return self._programs[name]


class Run:
    """A program with inputs and outputs (`autotune.workload.Trial`)."""

    def __init__(
        self,
        program: Executable,
        inputs: Sequence[np.ndarray],
        expected: Sequence[np.ndarray] | None = None,
        limit: float = _ERRORS[PRECISION_F32],
    ) -> None:
        self._program, self._inputs, self._expected, self.limit = program, inputs, expected, limit
        self.outputs = [aligned(sizes(value), value.dtype) for value in program.outputs.values()]
        program.release()
        self.run()

    def run(self) -> None:
        """Run the whole network once."""
        self._program.run(self._inputs, self.outputs)

    def move(self) -> None:
        """Do nothing: each visit allocates its own memory, and callers' inputs and outputs do not move."""

    def check(self) -> float:
        """Return the largest difference from the first plan's float outputs, relative to an output's largest value."""
        pairs = zip(self.outputs, self._expected or (), strict=False)
        return max((relative_error(got, right) for got, right in pairs if is_float(got.dtype)), default=0.0)
