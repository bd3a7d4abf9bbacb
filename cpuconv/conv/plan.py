"""Plan: a convolution ready to run — weights packed, kernels compiled, arguments bound.

What a call still does: check the arrays, write their addresses into the argument blocks, and start the program.
Several threads may call one plan at once: each takes a context (argument blocks) of its own from a pool that grows to
the number of callers, and a workspace from the pool of the process.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

import layouts
from cpuconv.conv import session
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.ending_block import Numbers, ending_block, fill_of
from cpuconv.conv.recipe import Candidate, Recipe, assemble, operands_of
from cpuconv.conv.template import Evaluated, Patches
from cpuconv.errors import ArgumentError, must
from cpuconv.kernels.binding.bound_step import bind
from cpuconv.memory.aligned import aligned
from cpuconv.memory.workspaces import Workspaces
from cpuconv.problem.arrays import address, as_view, check_activation_array, check_out, like, writable_view
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.runtime.code.together import with_kernels

if TYPE_CHECKING:
    from autotune.report.explain import Explanation
    from cpuconv.option_types import LayoutName

A = TypeVar("A")

_BYTES_BESIDE = 24 << 10  # of a plan's Python objects, roughly
_MOST_VIEWS = 8  # pairs of strides of input and residual for which contexts are kept


class _Context:
    """One caller's argument blocks and program."""

    def __init__(self, calls: Recipe | Evaluated, ending: np.ndarray, fill: int) -> None:
        self.ending = ending.copy()
        self.ended = False  # whether a call has put another ending there
        self.workspace_bytes = calls.workspace
        kept: list[Any] = [self.ending]  # objects whose addresses the blocks hold
        known = {"bias": address(self.ending), "fill": fill}
        bound = calls.bound if isinstance(calls, Evaluated) else partial(_bound, calls)
        self._patches, self._program = bound(known, kept)
        self._addresses = dict.fromkeys(("w", "workspace"), 0)  # of the call before: they seldom change
        self._x, self._y, self._residual = (self._patches.get(name, []) for name in ("x", "y", "residual"))

    def run(self, x: int, y: int, residual: int, weight: int, workspace: int) -> None:
        """Run on these addresses."""
        for block, index, offset in self._x:
            block[index] = x + offset
        for block, index, offset in self._y:
            block[index] = y + offset
        for block, index, offset in self._residual:
            block[index] = residual + offset
        if self._addresses["w"] != weight:
            self._move("w", weight)
        if self._addresses["workspace"] != workspace:
            self._move("workspace", workspace)
        self._program.run()

    def _move(self, name: str, start: int) -> None:
        self._addresses[name] = start
        for block, index, offset in self._patches.get(name, ()):
            block[index] = start + offset


def _bound(recipe: Recipe, known: dict[str, int], kept: list[Any]) -> tuple[Patches, Program]:
    """As `Evaluated.bound`, of steps."""
    steps = with_kernels(
        lambda: (kernel for step in recipe.steps for kernel in step.kernels()),
        lambda: [bind(step, kept, known) for step in recipe.steps],
    )
    patches: Patches = {}
    for step in steps:
        for name, places in step.late.items():
            patches.setdefault(name, []).extend((step.block.data, at, int(step.block[at])) for at in places)
    return patches, Program([step.row for step in steps], recipe.threads, kept)


def _strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Byte strides of a C-contiguous array of elements of `size` bytes, as NumPy gives them."""
    return tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Plan:
    """A convolution of one shape with fixed weights; call it with arrays.

    Attributes
    ----------
    problem : ConvProblem
    candidate : Candidate
    algorithm : str
        The candidate, solver and parameters, as one line.
    in_layout, out_layout : str
        What `x` must be in, and what the result is in.
    packing : Packing
        The form of its packed weights.
    packed_weight_bytes : int
    workspace_bytes : int
        Workspace of one call.
    nbytes : int
        Bytes that it holds beside weights, roughly.
    """

    def __init__(
        self,
        problem: ConvProblem,
        choice: Choice,
        limits: Limits,
        weight: np.ndarray | None,
        bias: np.ndarray | None = None,
        workspaces: Workspaces | None = None,
        numbers: Numbers | None = None,
        evaluated: Evaluated | None = None,
        ending: np.ndarray | None = None,
    ) -> None:
        """`weight` is packed in the candidate's form; None if each run gets its own. `workspaces`: by default those of
        the session. `numbers`: of integers; their sums are of weights that each run gets where it gets an
        ending. `evaluated`: the kernel calls of the problem, of the chosen candidate; None: they are assembled.
        `ending`: what `ending_block` gives, where it is known."""
        self.problem = problem
        self.algorithm = str(choice.candidate) if evaluated is None else evaluated.template.name
        self.decided_by = choice.decided_by
        self.in_layout: LayoutName = cast("LayoutName", problem.in_layout)
        self.out_layout: LayoutName = cast("LayoutName", problem.out_layout)
        self.packing = choice.candidate.packing(problem) if evaluated is None else evaluated.template.packing
        self.packed_weight_bytes = self.packing.size
        if weight is not None and weight.nbytes != self.packing.size:
            expected = f"{self.packing.size} bytes of packed weights, or None"
            raise ArgumentError(must("weight", expected, f"{weight.nbytes} bytes of shape {weight.shape}"))
        self.candidate: Candidate = choice.candidate
        self._limits = limits
        self._x_shape = layouts.get(problem.in_layout).shape(*problem.in_shape)
        self._y_shape = layouts.get(problem.out_layout).shape(*problem.out_shape)
        self._weight = weight
        self._workspaces = workspaces or session.current.workspaces
        types = problem.types
        self.ending = ending_block(problem, choice.candidate, bias, numbers) if ending is None else ending
        self._fill = fill_of(problem, numbers and numbers.quantization)
        self._contexts: dict[Any, list[_Context]] = {}
        self._x_dtype, self._x_aligned, self._y_dtype = types.x.outside, types.x.bytes, types.y.outside
        self._x_bytes = types.x.bytes * math.prod(self._x_shape)
        self._evaluated = evaluated
        calls = evaluated or assemble(problem, choice.candidate, closed=limits.closed)
        self.workspace_bytes = calls.workspace
        self.nbytes = _BYTES_BESIDE + calls.nbytes
        if problem.n:
            self._contexts[None, None] = [_Context(calls, self.ending, self._fill)]
        self._dense = _strides(self._x_shape, types.x.bytes), _strides(self._y_shape, types.y.bytes)

    def __repr__(self) -> str:
        return f"<cpuconv.Plan {self.problem.key}: {self.algorithm}>"

    def explain(self) -> Explanation:
        """Every candidate of this problem, and what decided."""
        from cpuconv.conv.choice.explain import explain  # and with it tables

        return explain(self.problem, self._limits, self.algorithm, self.decided_by)

    def __call__(self, x: A, *, residual: Any = None, out: Any = None) -> A:
        """activation(convolution of `x` + bias + residual).

        Parameters
        ----------
        x : array
            Of the plan's dtype (float32, or as it was made) and shape in `in_layout`; any strides, read in place. Tail
            channels of blocks are zero.
        residual : array
            Of the output's dtype and shape in `out_layout`; given exactly when the plan was made with `residual=True`.
        out : numpy.ndarray or torch.Tensor
            C-contiguous, of the output's dtype and shape, overlapping no input; made when None.

        Returns
        -------
        numpy.ndarray or torch.Tensor
            `out`; or a new array, a tensor if `x` is one (on memory that they share).

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An array has a wrong shape, dtype or place in memory.
        """
        result: A = self.run(x, residual, out)
        return result

    def run(
        self, x: Any, residual: Any, out: Any, ending: np.ndarray | None = None, weight: np.ndarray | None = None
    ) -> Any:
        """As `__call__`, with `ending` and packed `weight` in place of the plan's own for this call.

        An ending is what `ending_block` gives, or where sums are floats a float32 bias (K).
        """
        source = x
        if type(x) is not np.ndarray or x.dtype is not self._x_dtype or (x_address := address(x)) % self._x_aligned:
            x = as_view(x, "x", self.problem.types.x)
            x_address = address(x)
        if x.shape != self._x_shape:
            check_activation_array(x, self.problem, "x")
        if self.problem.residual != (residual is not None):
            expected = "an array: the plan adds one" if self.problem.residual else "None: the plan adds none"
            raise ArgumentError(must("residual", expected, "None" if residual is None else "an array"))
        if residual is not None:
            residual = as_view(residual, "residual", self.problem.types.y)
            check_activation_array(residual, self.problem, "residual")
        x_strides = None if x.strides == self._dense[0] else x.strides
        if out is None:
            target = aligned(self._y_shape, self._y_dtype)
            result = target if type(source) is np.ndarray else like(source, target)
            y_address = address(target)
        else:
            target = out if isinstance(out, np.ndarray) else writable_view(out, "out")
            result = out
            y_address = address(target)
            if not (
                target.shape == self._y_shape
                and target.dtype is self._y_dtype
                and target.flags.carray
                and residual is None
                and x_strides is None
                and (y_address - x_address >= self._x_bytes or x_address - y_address >= target.nbytes)
            ):  # not plainly right: look closer
                check_out(target, self._y_shape, (x, residual), self.problem.types.y)
        if not target.size:
            return result

        residual_strides = None if residual is None or residual.strides == self._dense[1] else residual.strides
        free = self._contexts.get((x_strides, residual_strides))
        if free is None:
            free = self._new_view(x_strides, residual_strides)
        try:
            context = free.pop()
        except IndexError:
            context = self._new_context(x_strides, residual_strides)
        if ending is not None:
            context.ending[: ending.size], context.ended = ending, True
        elif context.ended:
            context.ending[:], context.ended = self.ending, False
        packed = self._weight if weight is None else weight
        if packed is None:
            raise ArgumentError(must("weight", "packed weights: the plan was made without", "None"))
        added = 0 if residual is None else address(residual)
        if context.workspace_bytes:
            workspace = self._workspaces.take(context.workspace_bytes)
            context.run(x_address, y_address, added, address(packed), workspace.address)
            self._workspaces.give_back(workspace)
        else:
            context.run(x_address, y_address, added, address(packed), 0)
        free.append(context)
        return result

    def _new_view(self, x_strides: Any, residual_strides: Any) -> list[_Context]:
        views = self._contexts
        if len(views) >= _MOST_VIEWS:  # strides that never come back must not hold memory
            for key in list(views)[1 : len(views) - _MOST_VIEWS + 2]:
                views.pop(key, None)
        return views.setdefault((x_strides, residual_strides), [])

    def _new_context(self, x_strides: Any, residual_strides: Any) -> _Context:
        problem = self.problem
        if x_strides is residual_strides is None and self._evaluated is not None:
            return _Context(self._evaluated, self.ending, self._fill)
        views = [
            None if strides is None else layouts.get(layout).strides(strides)
            for layout, strides in ((problem.in_layout, x_strides), (problem.out_layout, residual_strides))
        ]
        recipe = assemble(problem, self.candidate, operands_of(problem, *views), self._limits.closed)
        return _Context(recipe, self.ending, self._fill)
