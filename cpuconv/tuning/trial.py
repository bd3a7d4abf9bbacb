"""A candidate bound to random data that change their places in memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

import layouts
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F32
from cpuconv.memory.workspaces import Workspace, Workspaces
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reference import conv2d as oracle
from cpuconv.problem.reference import relative_error
from cpuconv.tuning.placement import MOST, Arena, cold_weights

ERROR_LIMITS = {"exact": 2e-5, "standard": 1e-4, "fast": 1e-2}
"""Largest error an accuracy class admits, relative to the output's largest value, on unit-normal data."""

_PRIMES = (65_537, 65_539, 65_543, 65_551)

_EVERYTHING = Limits(accuracy="fast")


class ConvTrial:
    """One candidate bound to random data.

    With cold weights, each run takes others that are in no cache, as in a network whose layers evict one another's.
    """

    def __init__(self, problem: ConvProblem, candidate: Candidate, weights: str = "warm") -> None:
        _, w, bias, self._residual = data(problem)
        self._problem, self._shared = problem, shared(problem)
        self._weight = candidate.packing(problem).pack(w, problem.threads)
        self._workspaces = Workspaces()
        self._plan = Plan(problem, Choice(candidate, "named"), _EVERYTHING, None, bias, self._workspaces)
        self.limit, self._is_cold = ERROR_LIMITS[candidate.accuracy], weights == "cold"
        self._weights: Iterator[np.ndarray] = itertools.repeat(self._weight)
        if self._is_cold:
            self._weights = cold_weights(self._weight.nbytes)
        self.move()
        self.run()

    def run(self) -> None:
        """One call."""
        self._plan.run(self._shared.x, self._residual, self._shared.out, None, next(self._weights))

    def move(self) -> None:
        """Put the workspace, warm weights, and the input and output of all trials of the problem in other places. Runs
        count until another trial of the problem moves, as that may take the same ones; weights too large for places to
        matter stay."""
        shared = self._shared
        shared.move()
        self._workspaces.clear()
        self._workspaces.give_back(Workspace(shared.workspace.place(self._plan.workspace_bytes)))
        if not self._is_cold and self._weight.nbytes <= MOST:
            self._weights = itertools.repeat(shared.weights.copy(self._weight))

    def check(self) -> float:
        """Error of the output, relative to its largest value."""
        self.move()
        self._shared.out[...] = np.nan
        self._plan.run(self._shared.x, self._residual, self._shared.out, None, self._weight)
        return relative_error(self._shared.out, expected(self._problem))


class Shared:
    """What all trials of a problem share, so that their places favour none of them.

    Attributes
    ----------
    x, out : numpy.ndarray
        Input and output, others after each move.
    weights, workspace : Arena
        Memory for those of the trial that runs.
    """

    def __init__(self, problem: ConvProblem) -> None:
        self._content = data(problem)[0]
        self._out_shape = layouts.get(problem.out_layout).shape(*problem.out_shape)
        self._arenas = Arena(), Arena()
        self.weights, self.workspace = Arena(), Arena()
        self.move()

    def move(self) -> None:
        """Put input and output in places drawn at random."""
        arena, out_arena = self._arenas
        self.x = arena.copy(self._content)
        self.out = out_arena.place(F32.bytes * math.prod(self._out_shape)).view(np.float32).reshape(self._out_shape)


@functools.lru_cache(maxsize=2)
def shared(problem: ConvProblem) -> Shared:
    """The input and output that trials of a problem share."""
    return Shared(problem)


@functools.lru_cache(maxsize=2)
def data(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Input, weights, bias and residual: unit normal, weights scaled to give outputs of unit variance."""
    x = layouts.from_nchw(normal(0, problem.in_shape), problem.in_layout)
    w = normal(1, problem.weight_shape) / np.sqrt(np.float32(problem.cg * problem.r * problem.s))
    residual = layouts.from_nchw(normal(2, problem.out_shape), problem.out_layout) if problem.residual else None
    return x, w, normal(3, (problem.k,)), residual


def normal(kind: int, shape: tuple[int, ...]) -> np.ndarray:
    """Unit normal numbers, others of each kind; they repeat after a prime number of them, so that no two rows, columns
    or channels are alike, as drawing millions takes longer than running most layers."""
    return np.resize(_drawn(kind), shape)


@functools.cache
def _drawn(kind: int) -> np.ndarray:
    return np.random.default_rng(kind).standard_normal(_PRIMES[kind], np.float32)


@functools.lru_cache(maxsize=2)
def expected(problem: ConvProblem) -> np.ndarray:
    """The float64 oracle's result on `data(problem)`."""
    x, w, bias, residual = data(problem)
    return oracle(x, w, bias, problem, residual)
