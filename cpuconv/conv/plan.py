"""Plan: an executable convolution, with packed weights, compiled kernels and bound arguments.

A call checks the arrays, writes their addresses into the argument blocks, and starts the program. Several threads may
call one plan concurrently. Each takes its own context (argument blocks) from a pool, which grows to the number of
concurrent callers, and a workspace from the pool of the process.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

import layouts
from cpuconv.conv import session
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.epilogue_block import Numbers, epilogue_block, padding_word
from cpuconv.conv.recipe import Candidate, Recipe, assemble, operands_of
from cpuconv.conv.template import Evaluated, Patches
from cpuconv.errors import ArgumentError, must
from cpuconv.kernels.binding.bound_step import bind
from cpuconv.memory.aligned import aligned
from cpuconv.memory.workspaces import Workspaces
from cpuconv.problem.arrays import address, as_view, check_activation_array, check_out, like, writable_view
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.runtime.code.parallel_compile import with_kernels

if TYPE_CHECKING:
    from autotune.report.explain import Explanation
    from cpuconv.option_types import LayoutName

A = TypeVar("A")

_BYTES_BESIDE = 24 << 10  # approximate size of a plan's Python objects, in bytes
_MAX_VIEWS = 8  # pairs of strides of input and residual with cached contexts


class _Context:
    """Argument blocks and program of one caller."""

    def __init__(self, calls: Recipe | Evaluated, epilogue: np.ndarray, fill: int) -> None:
        self.epilogue = epilogue.copy()
        self.epilogue_replaced = False  # whether a call has overwritten the plan's epilogue
        self.workspace_bytes = calls.workspace
        owned: list[Any] = [self.epilogue]  # objects whose addresses are in the argument blocks
        known = {"bias": address(self.epilogue), "fill": fill}
        bound = calls.bound if isinstance(calls, Evaluated) else partial(_bound, calls)
        self._patches, self._program = bound(known, owned)
        self._addresses = dict.fromkeys(("w", "workspace"), 0)  # addresses of the previous call, as they rarely change
        self._x, self._y, self._residual = (self._patches.get(name, []) for name in ("x", "y", "residual"))

    def run(self, x: int, y: int, residual: int, weight: int, workspace: int) -> None:
        """Write the addresses into the argument blocks, and run the program."""
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


def _bound(recipe: Recipe, known: dict[str, int], owned: list[Any]) -> tuple[Patches, Program]:
    """Bind the steps of a recipe, like `Evaluated.bound`."""
    steps = with_kernels(
        lambda: (kernel for step in recipe.steps for kernel in step.kernels()),
        lambda: [bind(step, owned, known) for step in recipe.steps],
    )
    patches: Patches = {}
    for step in steps:
        for name, places in step.unresolved.items():
            patches.setdefault(name, []).extend((step.block.data, at, int(step.block[at])) for at in places)
    return patches, Program([step.row for step in steps], recipe.threads, owned)


def _strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Byte strides of a C-contiguous array with elements of `size` bytes, as in NumPy."""
    return tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Plan:
    """A convolution of one shape with fixed weights; call it with arrays.

    Attributes
    ----------
    problem : ConvProblem
    candidate : Candidate
    algorithm : str
        The candidate as text: solver and parameters.
    in_layout, out_layout : str
        Layouts of `x` and of the result.
    packing : Packing
        The form of the packed weights.
    packed_weight_bytes : int
    workspace_bytes : int
        Workspace of one call, in bytes.
    nbytes : int
        Approximate size of the plan without weights, in bytes.
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
        epilogue: np.ndarray | None = None,
    ) -> None:
        """`weight`: packed in the candidate's form; None if each run passes its own. `workspaces`: default is the pool
        of the session. `numbers`: for integers; the sums of the weights do not matter if each run passes an epilogue.
        `evaluated`: the kernel calls of the chosen candidate; None: they are assembled here. `epilogue`: the result of
        `epilogue_block`, if it exists."""
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
        self.epilogue = epilogue_block(problem, choice.candidate, bias, numbers) if epilogue is None else epilogue
        self._fill = padding_word(problem, numbers and numbers.quantization)
        self._contexts: dict[Any, list[_Context]] = {}
        self._x_dtype, self._x_aligned, self._y_dtype = types.x.outside, types.x.part_bytes, types.y.outside
        self._adds_residual = problem.residual
        self._x_bytes = types.x.bytes * math.prod(self._x_shape)
        self._evaluated = evaluated
        calls = evaluated or assemble(problem, choice.candidate, closed=limits.closed)
        self.workspace_bytes = calls.workspace
        self.nbytes = _BYTES_BESIDE + calls.nbytes
        if problem.n:
            self._contexts[None, None] = [_Context(calls, self.epilogue, self._fill)]
        self._dense = _strides(self._x_shape, types.x.bytes), _strides(self._y_shape, types.y.bytes)

    def __repr__(self) -> str:
        return f"<cpuconv.Plan {self.problem.key}: {self.algorithm}>"

    def explain(self) -> Explanation:
        """List all candidates of this problem, and the reason for the selection."""
        from cpuconv.conv.choice.explain import explain  # deferred, because it imports the report tables

        return explain(self.problem, self._limits, self.algorithm, self.decided_by)

    def __call__(self, x: A, *, residual: Any = None, out: Any = None) -> A:
        """Compute activation(convolution of `x` + bias + residual).

        Parameters
        ----------
        x : array
            Array of the plan's input dtype and shape in `in_layout`; any strides, read in place. Padding channels of
            the last block are zero.
        residual : array
            Array of the output's dtype and shape in `out_layout`; required if and only if the plan has `residual=True`.
        out : numpy.ndarray or torch.Tensor
            C-contiguous array of the output's dtype and shape, not overlapping an input; allocated if None.

        Returns
        -------
        numpy.ndarray or torch.Tensor
            `out`, or a new array; a torch tensor (sharing the memory) if `x` is one.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An array has a wrong shape or dtype, or overlaps another one.
        """
        array: Any = x
        if type(array) is not np.ndarray or array.dtype is not self._x_dtype:
            array = as_view(x, "x", self.problem.types.x)
        if out is None:
            result: Any = self.run(array, residual, None)
            return result if array is x else like(x, result)
        self.run(array, residual, out if isinstance(out, np.ndarray) else writable_view(out, "out"))
        return out

    def run(
        self,
        x: np.ndarray,
        residual: Any,
        out: np.ndarray | None,
        epilogue: np.ndarray | None = None,
        weight: np.ndarray | None = None,
    ) -> np.ndarray:
        """Run as `__call__`, but with the given `epilogue` and packed `weight` instead of the plan's own.

        `x` has the plan's input dtype. An epilogue is a result of `epilogue_block`; for float sums, a float32 bias
        (K,).
        """
        x_address = address(x)
        if x_address % self._x_aligned:
            x = x.copy()
            x_address = address(x)
        if x.shape != self._x_shape:
            check_activation_array(x, self.problem, "x")
        if self._adds_residual != (residual is not None):
            expected = "an array: the plan adds one" if self._adds_residual else "None: the plan adds none"
            raise ArgumentError(must("residual", expected, "None" if residual is None else "an array"))
        if residual is not None:
            residual = as_view(residual, "residual", self.problem.types.y)
            check_activation_array(residual, self.problem, "residual")
        x_strides = None if x.strides == self._dense[0] else x.strides
        if out is None:
            target = aligned(self._y_shape, self._y_dtype)
            y_address = address(target)
        else:
            target = out
            y_address = address(target)
            if not (
                target.shape == self._y_shape
                and target.dtype is self._y_dtype
                and target.flags.carray
                and residual is None
                and x_strides is None
                and (y_address - x_address >= self._x_bytes or x_address - y_address >= target.nbytes)
            ):  # the fast check failed: check in detail
                check_out(target, self._y_shape, (x, residual), self.problem.types.y)
        if not target.size:
            return target

        residual_strides = None if residual is None or residual.strides == self._dense[1] else residual.strides
        free = self._contexts.get((x_strides, residual_strides))
        if free is None:
            free = self._new_view(x_strides, residual_strides)
        try:
            context = free.pop()
        except IndexError:
            context = self._new_context(x_strides, residual_strides)
        if epilogue is not None:
            context.epilogue[: epilogue.size], context.epilogue_replaced = epilogue, True
        elif context.epilogue_replaced:
            context.epilogue[:], context.epilogue_replaced = self.epilogue, False
        packed = self._weight if weight is None else weight
        if packed is None:
            raise ArgumentError(must("weight", "packed weights, as the plan has none", "None"))
        added = 0 if residual is None else address(residual)
        if context.workspace_bytes:
            workspace = self._workspaces.take(context.workspace_bytes)
            context.run(x_address, y_address, added, address(packed), workspace.address)
            self._workspaces.give_back(workspace)
        else:
            context.run(x_address, y_address, added, address(packed), 0)
        free.append(context)
        return target

    def _new_view(self, x_strides: Any, residual_strides: Any) -> list[_Context]:
        views = self._contexts
        if len(views) >= _MAX_VIEWS:  # limits the memory of strides that do not recur
            for key in list(views)[1 : len(views) - _MAX_VIEWS + 2]:
                views.pop(key, None)
        return views.setdefault((x_strides, residual_strides), [])

    def _new_context(self, x_strides: Any, residual_strides: Any) -> _Context:
        problem = self.problem
        if x_strides is residual_strides is None and self._evaluated is not None:
            return _Context(self._evaluated, self.epilogue, self._fill)
        views = [
            None if strides is None else layouts.get(layout).strides(strides)
            for layout, strides in ((problem.in_layout, x_strides), (problem.out_layout, residual_strides))
        ]
        recipe = assemble(problem, self.candidate, operands_of(problem, *views), self._limits.closed)
        return _Context(recipe, self.epilogue, self._fill)
