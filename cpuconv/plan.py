"""Plan: a convolution ready to run — weights packed, workspace allocated, kernels compiled, arguments bound.

What a call still does: check the arrays, write three addresses into the argument blocks, and start the program.
Several threads may call one plan at once: each takes a context (workspace and argument blocks) of its own from a
pool that grows to the number of callers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import layouts
from cpuconv.arrays import address, as_float32_view, check_activation_array, check_out
from cpuconv.errors import ArgumentError, must
from cpuconv.explain import Explanation, explain
from cpuconv.isa import current
from cpuconv.places import MOST, Room
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate, Recipe, assemble
from cpuconv.runtime import Program
from cpuconv.select import Choice, Limits
from cpuconv.solvers.base import FLOAT, MicroRef, Ref, aligned, divide

_F32 = np.dtype(np.float32)
_WIDEST_BLOCK = 16
_LINE = 64  # bytes to which copies of weights are aligned
_MOST_VIEWS = 8  # kinds of strides for which contexts are kept


class _Context:
    """One caller's workspace, argument blocks and program."""

    def __init__(self, recipe: Recipe, weight: np.ndarray, bias: np.ndarray) -> None:
        self.bias = bias.copy()
        self.workspace = aligned(recipe.workspace // FLOAT + _WIDEST_BLOCK)
        fixed = {"w": weight.ctypes.data, "bias": self.bias.ctypes.data, "workspace": self.workspace.ctypes.data}
        self._kept: list[Any] = [weight]  # whose addresses the blocks hold
        self._used: dict[str, np.ndarray] = {}  # instead of these
        self._patches: dict[str, list[tuple[memoryview, int, int]]] = {
            name: [] for name in ("x", "y", "residual", "w", "workspace")
        }
        rows = [(step.compile(), self._block(step, fixed), step.parts) for step in recipe.steps]
        self._program = Program(rows, recipe.threads)
        self._x, self._y, self._residual = (self._patches[name] for name in ("x", "y", "residual"))

    def _block(self, step: Any, fixed: dict[str, int]) -> np.ndarray:
        words: dict[str, int] = {}
        late: list[tuple[str, str, int]] = []
        for name, value in step.args.items():
            if isinstance(value, Ref):
                words[name] = fixed.get(value.name, 0) + value.offset
                if value.name in self._patches:
                    late.append((value.name, name, value.offset))
            elif isinstance(value, np.ndarray):
                self._kept.append(value)
                words[name] = value.ctypes.data
            elif isinstance(value, MicroRef):
                self._kept.append(code := value.entry())
                words[name] = code.address
            else:
                words[name] = int(value)
        block = step.kernel.pack(words)
        for ref, name, offset in late:
            self._patches[ref].append((memoryview(block), step.kernel.fields.index(name), offset))
        return block

    def run(self, x: int, y: int, residual: int) -> None:
        for block, index, offset in self._x:
            block[index] = x + offset
        for block, index, offset in self._y:
            block[index] = y + offset
        for block, index, offset in self._residual:
            block[index] = residual + offset
        self._program.run()

    def use(self, name: str, start: int, memory: np.ndarray) -> None:
        """Let the next calls find the weights ("w") or the "workspace" at another address, in memory that is kept."""
        self._used[name] = memory
        for block, index, offset in self._patches[name]:
            block[index] = start + offset


def flushed(weight: np.ndarray) -> np.ndarray:
    """`weight` with denormals set to zero: arithmetic on them is tens of times slower."""
    tiny = np.abs(weight) < np.finfo(np.float32).tiny
    return np.where(tiny, np.float32(0), weight)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Byte strides of a C-contiguous float32 array, as NumPy gives them."""
    return tuple(FLOAT * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Plan:
    """A convolution of one shape with fixed weights; call it with arrays.

    Attributes
    ----------
    problem : ConvProblem
    algorithm : str
        Solver and parameters, one line.
    in_layout, out_layout : str
        What `x` must be in, and what the result is in.
    workspace_bytes : int
        Workspace of one call.
    packed_weight_bytes : int
    """

    def __init__(
        self, problem: ConvProblem, choice: Choice, limits: Limits, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        self.problem = problem
        self.algorithm = str(choice.candidate)
        self.decided_by = choice.decided_by
        self.in_layout, self.out_layout = problem.in_layout, problem.out_layout
        self._candidate: Candidate = choice.candidate
        self._limits = limits
        self._x_shape = layouts.get(problem.in_layout).shape(*problem.in_shape)
        self._y_shape = layouts.get(problem.out_layout).shape(*problem.out_shape)
        self._weight = choice.candidate.solver.pack(problem, choice.candidate.params, current(), flushed(weight))
        self._bias = aligned(divide(problem.k, _WIDEST_BLOCK) * _WIDEST_BLOCK)
        self._bias[:] = 0
        if bias is not None:
            self._bias[: problem.k] = bias
        self._contexts: dict[Any, list[_Context]] = {}
        self._x_bytes = FLOAT * math.prod(self._x_shape)
        recipe = assemble(problem, choice.candidate)
        self.workspace_bytes = recipe.workspace
        self.packed_weight_bytes = self._weight.nbytes
        if problem.n:
            self._contexts[None, None] = [_Context(recipe, self._weight, self._bias)]
        self._dense = _strides(self._x_shape), _strides(self._y_shape)

    def __repr__(self) -> str:
        return f"<cpuconv.Plan {self.problem.key}: {self.algorithm}>"

    def explain(self) -> Explanation:
        """Every candidate of this problem, and what decided."""
        return explain(self.problem, self._limits, self.algorithm, self.decided_by)

    def __call__(self, x: Any, *, residual: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        """activation(convolution of `x` + bias + residual).

        Parameters
        ----------
        x : array
            float32, the plan's shape in `in_layout`; any strides, read in place. Tail channels of blocks are zero.
        residual : array
            float32, the output's shape in `out_layout`; given exactly when the plan was made with `residual=True`.
        out : numpy.ndarray
            C-contiguous float32 of the output's shape, overlapping no input; made when None.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An array of another shape, dtype or place than it must be.
        """
        return self.run(x, residual, out, None)

    def run(self, x: Any, residual: Any, out: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
        """As `__call__`, with `bias` (K floats) in place of the plan's own for this call."""
        if type(x) is not np.ndarray or x.dtype is not _F32 or (x_address := address(x)) % FLOAT:
            x = as_float32_view(x, "x")
            x_address = address(x)
        if x.shape != self._x_shape:
            check_activation_array(x, self.problem, "x")
        if self.problem.residual != (residual is not None):
            expected = "an array: the plan adds one" if self.problem.residual else "None: the plan adds none"
            raise ArgumentError(must("residual", expected, "None" if residual is None else "an array"))
        if residual is not None:
            residual = as_float32_view(residual, "residual")
            check_activation_array(residual, self.problem, "residual")
        x_strides = None if x.strides == self._dense[0] else x.strides
        given = isinstance(out, np.ndarray)
        if out is None:
            out = aligned(self._y_shape)
        elif not given:
            check_out(out, self._y_shape)
        y_address = address(out)
        if given and not (
            out.shape == self._y_shape
            and out.dtype is _F32
            and out.flags.carray
            and residual is None
            and x_strides is None
            and (y_address - x_address >= self._x_bytes or x_address - y_address >= out.nbytes)
        ):  # not plainly right: look closer
            check_out(out, self._y_shape, (x, residual))
        if not out.size:
            return out

        residual_strides = None if residual is None or residual.strides == self._dense[1] else residual.strides
        free = self._contexts.get((x_strides, residual_strides))
        if free is None:
            free = self._new_view(x_strides, residual_strides)
        try:
            context = free.pop()
        except IndexError:
            context = self._new_context(x_strides, residual_strides)
        if bias is not None:
            context.bias[: self.problem.k] = bias
        context.run(x_address, y_address, 0 if residual is None else address(residual))
        free.append(context)
        return out

    def copy_weights(self, size: int) -> Iterator[None]:
        """Copy the packed weights to more than `size` bytes; each step of the result lets calls read the next copy."""
        step = divide(self._weight.nbytes, _LINE) * _LINE
        count = max(1, divide(size, max(1, step)))
        copies = aligned((count, step // FLOAT))
        copies[:, : self._weight.size] = self._weight.ravel()

        def turn() -> Iterator[None]:
            for at in itertools.cycle(range(count)):
                for contexts in self._contexts.values():
                    for context in contexts:
                        context.use("w", address(copies) + at * step, copies)
                yield

        return turn()

    def move(self, workspace: Room, weights: Room | None) -> None:
        """Let calls on dense arrays have their workspace and, given a room for them, packed weights in another place;
        weights too large for places to matter stay. For one caller at a time."""
        for context in self._contexts.get((None, None), []):
            place = workspace.place(context.workspace.nbytes)
            context.use("workspace", address(place), place)
            if weights is not None and self._weight.nbytes <= MOST:
                copy = weights.copy(self._weight)
                context.use("w", address(copy), copy)

    def _new_view(self, x_strides: Any, residual_strides: Any) -> list[_Context]:
        views = self._contexts
        if len(views) >= _MOST_VIEWS:  # strides that never come back must not hold memory
            for key in list(views)[1 : len(views) - _MOST_VIEWS + 2]:
                views.pop(key, None)
        return views.setdefault((x_strides, residual_strides), [])

    def _new_context(self, x_strides: Any, residual_strides: Any) -> _Context:
        problem = self.problem
        views = [
            None if strides is None else layouts.get(layout).strides(strides)
            for layout, strides in ((problem.in_layout, x_strides), (problem.out_layout, residual_strides))
        ]
        return _Context(assemble(problem, self._candidate, *views), self._weight, self._bias)
