"""Convolution as the tuner sees it: the entry point `autotune.workloads`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import autotune.workload as protocol
import layouts
from cpuconv import select, sources
from cpuconv.errors import SourceError
from cpuconv.isa import current
from cpuconv.plan import Plan
from cpuconv.probes import probe
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate, assemble, workspace_bytes
from cpuconv.reference import conv2d as oracle
from cpuconv.reference import relative_error
from cpuconv.runtime import cache
from cpuconv.runtime.threads import pool
from cpuconv.select import AUTO, Choice, Limits

ERROR_LIMITS = {"exact": 2e-5, "standard": 1e-4, "fast": 1e-2}
"""Largest error an accuracy class admits, relative to the output's largest value, on unit-normal data."""

_EVERYTHING = Limits(accuracy="fast")


class ConvTrial:
    """One candidate bound to random data."""

    def __init__(self, problem: ConvProblem, candidate: Candidate) -> None:
        x, w, bias, residual = data(problem)
        self._problem = problem
        self._plan = Plan(problem, Choice(candidate, "named"), _EVERYTHING, w, bias)
        self._x, self._residual = x, residual
        self._out = self._plan(x, residual=residual)
        self.limit = ERROR_LIMITS[candidate.accuracy]

    def run(self) -> None:
        """One call."""
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
def expected(problem: ConvProblem) -> np.ndarray:
    """The float64 oracle's result on `data(problem)`."""
    x, w, bias, residual = data(problem)
    return oracle(x, w, bias, problem, residual)


class ConvWorkload:
    """The convolutions of ONNX files and benchdnn lines."""

    name = "cpuconv"

    @property
    def sources(self) -> str:
        """Hash of the kernel sources."""
        return cache.source_stamp()

    @property
    def isa(self) -> str:
        """Instruction set that kernels are generated for."""
        return current().name

    def load(self, source: str, *, layouts: tuple[str, str] | None, threads: int) -> list[protocol.Problem]:
        """The problems of a source; `auto` layouts are resolved by the model.

        Raises
        ------
        autotune.workload.SourceError
            The source cannot be read; the message says why.
        """
        wanted = layouts or ("NCHW", "NCHW")
        concrete = tuple("NCHW" if name == AUTO else name for name in wanted)
        try:
            entries = sources.load(source, concrete, threads)
        except SourceError as error:
            raise protocol.SourceError(str(error)) from error
        found = []
        for entry in entries:
            problem = entry.problem
            if AUTO in wanted:
                problem = select.resolve_layouts(problem, *wanted, Limits())
            found.append(protocol.Problem(problem.key, entry.label, entry.count, float(problem.flops), entry.network))
        return found

    def candidates(self, key: str, effort: str) -> tuple[list[protocol.Candidate], list[protocol.Rejected]]:
        """Every candidate, the model's favourite first, and the solvers that cannot run, with their reasons."""
        problem = ConvProblem.parse(key)
        found = [
            protocol.Candidate(
                name=str(ranked.candidate),
                bound=ranked.cost.bound,
                estimate=ranked.cost.estimate,
                workspace=workspace_bytes(problem, ranked.candidate),
                accuracy=ranked.candidate.accuracy,
            )
            for ranked in select.spread(select.ranking(problem))
        ]
        rejected = [protocol.Rejected(name, why) for name, why in select.applicable(problem) if why is not None]
        return found, rejected

    def compile(self, key: str, name: str) -> None:
        """Compile the candidate's kernels into the disk cache."""
        for step in assemble(ConvProblem.parse(key), Candidate.parse(name)).steps:
            step.compile()

    def prepare(self, key: str, name: str) -> ConvTrial:
        """The candidate, ready to run on random data."""
        return ConvTrial(ConvProblem.parse(key), Candidate.parse(name))

    def probe(self, threads: int) -> dict[str, float]:
        """Measured FMA peak (GFLOP/s) and bandwidth of each memory level (GB/s)."""
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
            "kernel_sources": cache.source_stamp(),
        }


workload = ConvWorkload()
