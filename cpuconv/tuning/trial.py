"""Trials: candidates bound to random data that move in memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

import layouts
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.epilogue_block import Numbers
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.memory.workspaces import Workspace, Workspaces
from cpuconv.problem.arrays import kernel_view
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.checking import error_of, limit_of
from cpuconv.tuning.placement import MAX_RANGE, Arena, cold_weights
from cpuconv.tuning.random_operands import expected, random_operands

_SPOILT = 0x5A

_EVERYTHING = Limits(accuracy="fast")


class ConvTrial:
    """One candidate bound to random data.

    With cold weights, each run uses weights that are in no cache, as in a network whose layers evict one another's.

    Attributes
    ----------
    plan : Plan
    weight : numpy.ndarray
        Packed weights; runs use the copy that `move` placed.
    shared : Shared
        Input and output, and memory for the rest.
    limit : float
        Max. error that `check` accepts.
    """

    def __init__(self, problem: ConvProblem, candidate: Candidate, weights: str = "warm") -> None:
        given = random_operands(problem)
        self._problem, self.shared, self._residual = problem, shared(problem), given.residual
        self.weight = candidate.packing(problem).pack(kernel_view(given.w), problem.threads)
        self._workspaces = Workspaces()
        choice = Choice(candidate, "named")
        numbers = Numbers.of(given.w, given.quantization) if given.quantization else None
        self.plan = Plan(problem, choice, _EVERYTHING, None, given.bias, self._workspaces, numbers)
        self.limit, self._is_cold = limit_of(problem, candidate.accuracy), weights == "cold"
        self._weights: Iterator[np.ndarray] = itertools.repeat(self.weight)
        if self._is_cold:
            self._weights = cold_weights(self.weight.nbytes)
        self.move()
        self.run()

    def run(self) -> None:
        """Execute one call."""
        self.plan.run(self.shared.x, self._residual, self.shared.out, None, next(self._weights))

    def move(self) -> None:
        """Move the workspace, warm weights, and the input and output of all trials of the problem to other places.

        Runs are valid until another trial of the problem moves, which may use the same places. Weights larger than
        `MAX_RANGE` stay, as the place does not matter for them.
        """
        shared = self.shared
        shared.move()
        self._workspaces.clear()
        self._workspaces.give_back(Workspace(shared.workspace.place(self.plan.workspace_bytes)))
        if not self._is_cold and self.weight.nbytes <= MAX_RANGE:
            self._weights = itertools.repeat(shared.weights.copy(self.weight))

    def check(self) -> float:
        """Return the error of the output, relative to its largest value."""
        self.move()
        self.shared.spoil()
        self.plan.run(self.shared.x, self._residual, self.shared.out, None, self.weight)
        return error_of(self._problem, self.shared.out, expected(self._problem))


class Shared:
    """Data shared by all trials of a problem, so that their places favour no trial.

    Attributes
    ----------
    x, out : numpy.ndarray
        Input and output; new arrays after each move.
    weights, workspace : Arena
        Memory for the running trial's weights and workspace.
    """

    def __init__(self, problem: ConvProblem) -> None:
        self._content = random_operands(problem).x
        self._out_shape, self._y = layouts.get(problem.out_layout).shape(*problem.out_shape), problem.types.y
        self._arenas = Arena(), Arena()
        self.weights, self.workspace = Arena(), Arena()
        self.move()

    def move(self) -> None:
        """Move input and output to random places."""
        arena, out_arena = self._arenas
        self.x = arena.copy(self._content)
        place = out_arena.place(self._y.bytes * math.prod(self._out_shape))
        self.out = place.view(self._y.outside).reshape(self._out_shape)

    def spoil(self) -> None:
        """Fill the output with a value that no correct result is filled with."""
        if self._y.parts > 1:
            self.out.view(np.uint8)[...] = 0xFF  # NaN
        else:
            self.out[...] = self._y.outside.type(_SPOILT if self._y.integer else np.nan)


@functools.lru_cache(maxsize=2)
def shared(problem: ConvProblem) -> Shared:
    """Return the data shared by trials of a problem."""
    return Shared(problem)
