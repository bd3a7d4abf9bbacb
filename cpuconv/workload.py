"""Convolution as the tuner sees it: the entry point `autotune.workloads`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import autotune.workload as protocol
import layouts
from autotune.device import fingerprint
from autotune.roofline import Work
from cpuconv import select, sources, tuned
from cpuconv.errors import SourceError
from cpuconv.isa import current
from cpuconv.metronome import metronome
from cpuconv.plan import Plan
from cpuconv.probes import probe
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate, assemble, current_sources, effective_threads
from cpuconv.reference import conv2d as oracle
from cpuconv.reference import relative_error
from cpuconv.runtime import cache
from cpuconv.runtime.threads import pool
from cpuconv.select import AUTO, Choice, Limits
from cpuconv.solvers.base import aligned
from cpuconv.work import work_of

ERROR_LIMITS = {"exact": 2e-5, "standard": 1e-4, "fast": 1e-2}
"""Largest error an accuracy class admits, relative to the output's largest value, on unit-normal data."""

_OVER_CACHE = 1.25  # copies of cold weights over the last cache

_EVERYTHING = Limits(accuracy="fast")


class ConvTrial:
    """One candidate bound to random data.

    With cold weights, runs take copies of the packed weights in turn that are together larger than the last cache, so
    that each finds its weights in memory, as in a network whose layers evict one another's.
    """

    def __init__(self, problem: ConvProblem, candidate: Candidate, regime: str = "warm") -> None:
        x, w, bias, residual = data(problem)
        self._problem = problem
        self._plan = Plan(problem, Choice(candidate, "named"), _EVERYTHING, w, bias)
        self._x, self._residual, self._out = x, residual, output(problem)
        self.run()
        self.limit = ERROR_LIMITS[candidate.accuracy]
        if regime == "cold":
            self._copies = self._plan.copy_weights(int(_OVER_CACHE * max(dict(fingerprint().caches).values())))
            self.run = self._run_cold  # type: ignore[method-assign]

    def run(self) -> None:
        """One call."""
        self._plan.run(self._x, self._residual, self._out, None)

    def _run_cold(self) -> None:
        next(self._copies)
        self._plan.run(self._x, self._residual, self._out, None)

    def check(self) -> float:
        """Error of the output, relative to its largest value."""
        self._out[...] = np.nan
        self.run()
        return relative_error(self._out, expected(self._problem))


@functools.lru_cache(maxsize=2)
def data(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Input, weights, bias and residual: unit normal, weights scaled to give outputs of unit variance."""
    rng = np.random.default_rng(0)

    def activation(layout: str, shape: tuple[int, int, int, int]) -> np.ndarray:
        return layouts.from_nchw(rng.standard_normal(shape, np.float32), layout)

    x = activation(problem.in_layout, problem.in_shape)
    w = rng.standard_normal(problem.weight_shape, np.float32)
    w /= np.sqrt(np.float32(problem.cg * problem.r * problem.s))
    bias = rng.standard_normal(problem.k, np.float32)
    residual = activation(problem.out_layout, problem.out_shape) if problem.residual else None
    return x, w, bias, residual


@functools.lru_cache(maxsize=2)
def output(problem: ConvProblem) -> np.ndarray:
    """What all trials of a problem write to: its place in memory then favours none of them."""
    return aligned(layouts.get(problem.out_layout).shape(*problem.out_shape))


@functools.lru_cache(maxsize=2)
def expected(problem: ConvProblem) -> np.ndarray:
    """The float64 oracle's result on `data(problem)`."""
    x, w, bias, residual = data(problem)
    return oracle(x, w, bias, problem, residual)


class ConvWorkload:
    """The convolutions of ONNX files and benchdnn lines."""

    name = "cpuconv"

    @property
    def sources(self) -> frozenset[str]:
        """Those hashes of all solvers."""
        return current_sources()

    @property
    def isa(self) -> str:
        """Instruction set that kernels are generated for."""
        return current().name

    tables = tuned.TABLES

    def sources_of(self, name: str) -> str:
        """Hash of the kernel sources that a candidate is made from."""
        return Candidate.parse(name).sources

    def with_threads(self, key: str, threads: int) -> str:
        """The key of the same problem for another number of threads."""
        return replace(ConvProblem.parse(key), threads=threads).key

    def load(self, source: str, reading: protocol.Reading = protocol.AS_IT_IS) -> list[protocol.Problem]:
        """The problems of a source; `auto` layouts are resolved by the model. Those of a model, which runs whole and
        so finds its weights in memory, are timed with cold weights.

        Raises
        ------
        autotune.workload.SourceError
            The source cannot be read; the message says why.
        """
        wanted = reading.layouts or ("NCHW", "NCHW")
        concrete = tuple("NCHW" if name == AUTO else name for name in wanted)
        try:
            entries = sources.load(source, concrete, reading.threads, reading.batches, reading.inputs)
        except SourceError as error:
            raise protocol.SourceError(str(error)) from error
        regime = "cold" if sources.is_model(source) else "warm"
        found = []
        for entry in entries:
            problem = entry.problem
            if AUTO in wanted:
                problem = select.resolve_layouts(problem, *wanted, Limits())
            flops, threads = float(problem.flops), problem.threads
            found.append(protocol.Problem(problem.key, entry.label, entry.count, flops, entry.network, threads, regime))
        return found

    def candidates(self, key: str, effort: str) -> tuple[list[protocol.Candidate], list[protocol.Rejected]]:
        """Every candidate, the model's favourite first, and the solvers that cannot run, with their reasons."""
        problem = ConvProblem.parse(key)
        found = [select.offered(problem, ranked) for ranked in select.spread(select.ranking(problem))]
        rejected = [protocol.Rejected(name, why) for name, why in select.applicable(problem) if why is not None]
        return found, rejected

    def untuned(self, key: str) -> tuple[str, str]:
        """What a caller without limits gets where nothing is stored: the candidate, and who decides."""
        choice = select.untuned(ConvProblem.parse(key), Limits())
        return str(choice.candidate), choice.decided_by

    def compile(self, key: str, name: str) -> None:
        """Compile the candidate's kernels into the disk cache."""
        for step in assemble(ConvProblem.parse(key), Candidate.parse(name)).steps:
            step.compile()

    def prepare(self, key: str, name: str, regime: str = "warm") -> ConvTrial:
        """The candidate, ready to run on random data."""
        return ConvTrial(ConvProblem.parse(key), Candidate.parse(name), regime)

    def reference(self, key: str) -> Callable[[], None]:
        """FMAs and loads of known length on the problem's threads."""
        return metronome(effective_threads(ConvProblem.parse(key)))

    def work(self, key: str, name: str) -> Work | None:
        """The operations and bytes of a candidate; None of a name or a problem that these sources do not know."""
        try:
            return work_of(ConvProblem.parse(key), name)
        except ValueError:
            return None

    def probe(self, threads: int) -> Iterator[tuple[str, float]]:
        """Measured FMA peak (GFLOP/s), bandwidth of each memory level and of stores (GB/s), one after another."""
        return probe(threads)

    def describe(self) -> dict[str, Any]:
        """What code generation and threads look like here."""
        isa = current()
        place, writable = cache.folder()
        return {
            "isa": isa.name,
            "lanes": isa.lanes,
            "threading_layer": pool().layer,
            "kernel_cache": "{}{}".format(place, "" if writable else " (read-only)"),
        }


workload = ConvWorkload()
