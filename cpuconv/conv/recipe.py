"""From a problem and a candidate to kernel calls: the solver's steps, and reorders where layouts differ."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import fields, replace
from typing import Any

import numpy as np

import layouts
from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa import Isa, current
from cpuconv.kernels.binding import partition
from cpuconv.kernels.binding.steps import Args, Operand, Operands, Ref, Space, Step
from cpuconv.kernels.copies import moving, tail_lanes
from cpuconv.kernels.copies.moving import move_image
from cpuconv.kernels.copies.tail_lanes import ZeroTailTile, zero_tail_lanes
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.closed.closed_set import closed_step
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import launch
from cpuconv.runtime.code.sources.stamp import stamp
from cpuconv.solvers import BY_NAME
from cpuconv.solvers.shared.base import contiguous
from cpuconv.solvers.shared.solver import Solver
from cpuconv.symbolic.sizes import is_symbolic, memoised
from layouts import Strides

_WIDEST_VECTOR = 16  # float32 lanes
_DRIVEN = frozenset(("block", "chunk", "parts"))  # candidate parameters that are only argument words of drivers


@dataclass(frozen=True)
class Candidate:
    """A solver with its parameters; the text form is its name in the store and in `plan.algorithm`."""

    solver: Solver
    params: Any

    def __str__(self) -> str:
        return f"{self.solver.name}({','.join(f'{name}={value}' for name, value in vars(self.params).items())})"

    @property
    def accuracy(self) -> str:
        """The strictest accuracy class that the candidate satisfies."""
        rule = self.solver.accuracy
        return rule if isinstance(rule, str) else rule(self.params)

    @property
    def sources(self) -> str:
        """Hash of the sources of its kernels and of the reorders."""
        return _sources(self.solver)

    @property
    def rounding(self) -> str:
        """A prefix of its name; candidates with the same prefix give bit-identical results."""
        fields = "".join(f"{name}={getattr(self.params, name)}," for name in self.solver.rounding)
        return f"{self.solver.name}({fields}"

    @property
    def micro_kernels(self) -> dict[str, int]:
        """The parameters that its micro-kernels depend on; the others are argument words of the driver."""
        return {name: value for name, value in vars(self.params).items() if name not in _DRIVEN}

    def same_micro_kernels(self, other: Candidate) -> bool:
        """Whether another candidate of the solver has the same `micro_kernels`."""
        others = vars(other.params)
        return not any(value != others[name] and name not in _DRIVEN for name, value in vars(self.params).items())

    def packing(self, problem: ConvProblem, closed: bool = False) -> Packing:
        """The form of its packed weights; `closed`: for kernels of the closed set."""
        return self.solver.packing(problem, self.params, replace(current(), closed=closed))

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """Parse a candidate's name.

        Raises
        ------
        ValueError
            No solver has this name, or the parameters do not match its parameters.
        """
        solver = BY_NAME.get(text.partition("(")[0])
        if solver is None or not text.endswith(")"):
            raise ValueError(f"{text!r} names no candidate; the solvers are {', '.join(BY_NAME)}")
        names = [field.name for field in fields(solver.params)]
        values = {name: int(value) for name, value in re.findall(r"(\w+)=(-?\d+)", text)}
        if list(values) == names and str(candidate := cls(solver, solver.params(**values))) == text:
            return candidate
        raise ValueError(f"{text!r} does not name {', '.join(names)}")


def in_closed_set(problem: ConvProblem, candidate: Candidate) -> bool:
    """Whether all micro-kernels that a candidate calls for a problem are in the closed sets."""
    return _in_closed_set(problem, candidate, current())


@memoised(4096)
def _in_closed_set(problem: ConvProblem, candidate: Candidate, isa: Isa) -> bool:
    own = candidate.solver.is_closed
    if own is not None and not own(problem, candidate.params, isa):
        return False
    try:
        assemble(problem, candidate, closed=True)
    except OutsideClosedSetError:
        return False
    return True


@dataclass(frozen=True)
class Recipe:
    """The steps of one call, and the size of their common workspace in bytes."""

    steps: list[Step]
    workspace: int
    threads: int

    @property
    def nbytes(self) -> int:
        """Size of the arrays among the arguments, in bytes."""
        return sum(step.nbytes for step in self.steps)


@functools.cache
def current_sources() -> frozenset[str]:
    """`Candidate.sources` of all solvers."""
    return frozenset(map(_sources, BY_NAME.values()))


@functools.cache
def _sources(solver: Solver) -> str:
    return stamp(*solver.modules, moving.__name__, tail_lanes.__name__, launch.__name__)


def effective_threads(problem: ConvProblem) -> int:
    """Number of threads worth using; with symbolic sizes all, as `parts_each` decides for each size."""
    if problem.threads == 1 or is_symbolic(problem.flops):
        return problem.threads
    return problem.threads if problem.flops > partition.SERIAL_FLOPS else 1


def padded_bias(k: int, bias: np.ndarray | None, groups: int = 1) -> np.ndarray:
    """Pad a bias of `k` floats (None: zeros), as kernels read whole vectors from the first filter of each group on."""
    filters = k // groups
    read = k - filters + divide(filters, _WIDEST_VECTOR) * _WIDEST_VECTOR
    padded = aligned(divide(read, _WIDEST_VECTOR) * _WIDEST_VECTOR)
    padded[:] = 0
    if bias is not None:
        padded[:k] = bias.reshape(k)
    return padded


_contiguous = memoised(4096)(contiguous)


def dense(problem: ConvProblem) -> tuple[Strides, Strides]:
    """Byte strides of an input and an output that are C-contiguous in the problem's layouts."""
    return (
        _contiguous(problem.in_layout, problem.in_shape, problem.types.x),
        _contiguous(problem.out_layout, problem.out_shape, problem.types.y),
    )


def operands_of(
    problem: ConvProblem, x_strides: Strides | None = None, residual_strides: Strides | None = None
) -> Operands:
    """The arrays of a call, with these byte strides (None: C-contiguous in the problem's layouts)."""
    dense_x, dense_y = dense(problem)
    residual = Operand(Ref("residual"), residual_strides or dense_y) if problem.residual else None
    return Operands(Operand(Ref("x"), x_strides or dense_x), Operand(Ref("y"), dense_y), residual)


class OutsideClosedSetError(Exception):
    """A candidate calls strips that are not in the closed set."""


def assemble(
    problem: ConvProblem, candidate: Candidate, operands: Operands | None = None, closed: bool = False
) -> Recipe:
    """Assemble the steps for these operands (None: C-contiguous in the problem's layouts).

    The input and the residual may have any strides of their layout. Images of the output may have any distance; its
    other axes are contiguous. `closed`: GEMM strips are from the closed set
    (`kernels/products/closed/closed_set.py`).

    Raises
    ------
    OutsideClosedSetError
        `closed` is set, and the candidate calls other strips.
    """
    isa = replace(current(), closed=True) if closed else current()
    if effective_threads(problem) != problem.threads:
        problem = problem.changed(threads=effective_threads(problem))
    space = Space()
    steps: list[Step] = []
    if operands is None:
        operands = operands_of(problem)
    elif problem.n == 1:  # the stride between images is irrelevant
        operands = _alone(problem, operands)
    need_in, need_out = candidate.solver.layouts(problem, candidate.params, isa)
    types = problem.types

    x, y, residual = operands.x, operands.y, operands.residual
    if need_in is not None:
        x = _moved(problem, isa, space, steps, x, problem.in_shape, need_in, types.x)
    target = y
    if need_out is not None:
        wanted = _contiguous(need_out, problem.out_shape, types.y)
        added_as_is = residual is None or residual.strides == y.strides
        if not _same(wanted, y.strides) or y.strides != wanted and not added_as_is:
            target = Operand(space.reserve(_size(need_out, problem.out_shape, types.y)), wanted)
        if residual is not None and residual.strides != target.strides:
            residual = _moved(problem, isa, space, steps, residual, problem.out_shape, need_out, types.y, whole=True)
    for step in candidate.solver.bind(problem, candidate.params, isa, space, Operands(x, target, residual)):
        own = closed_step(step) if closed else step
        if own is None:
            raise OutsideClosedSetError(str(candidate))
        steps.append(own)
    if target is not y:
        steps.append(move_image(isa, space, problem.out_shape, target, y, problem.threads, types.y))
    elif need_out is not None and problem.k % isa.block(types.y) and not steps[-1].clears_tail:
        steps.append(_clear(problem, isa, y))
    return Recipe(steps, space.size, problem.threads)


def workspace_bytes(problem: ConvProblem, candidate: Candidate) -> int:
    """Workspace of a call with C-contiguous operands, in bytes."""
    return assemble(problem, candidate).workspace


def _size(layout: str, shape: tuple[int, int, int, int], element: Element) -> int:
    return math.prod(layouts.get(layout).shape(*shape)) * element.bytes


def _alone(problem: ConvProblem, operands: Operands) -> Operands:
    """The operands of one image, with the image stride of contiguous arrays."""
    x, y = dense(problem)

    def normal(operand: Operand, n: int) -> Operand:
        return Operand(operand.ref, operand.strides._replace(n=n))

    residual = operands.residual and normal(operands.residual, y.n)
    return Operands(normal(operands.x, x.n), normal(operands.y, y.n), residual)


def _same(a: Strides, b: Strides) -> bool:
    """Whether two views are equal except for the stride between images."""
    return a._replace(n=0) == b._replace(n=0)


def _moved(
    problem: ConvProblem,
    isa: Isa,
    space: Space,
    steps: list[Step],
    operand: Operand,
    shape: Any,
    layout: str,
    element: Element,
    whole: bool = False,
) -> Operand:
    """Return the operand with contiguous images in `layout`; append a reorder into the workspace if needed.

    `whole`: images are adjacent, too.
    """
    wanted = _contiguous(layout, shape, element)
    if operand.strides == wanted or not whole and _same(operand.strides, wanted):
        return operand
    moved = Operand(space.reserve(_size(layout, shape, element)), wanted)
    steps.append(move_image(isa, space, shape, operand, moved, problem.threads, element))
    return moved


def _clear(problem: ConvProblem, isa: Isa, y: Operand) -> Step:
    """Set the padding lanes of the last channel block to zero."""
    element = problem.types.y
    blocks, valid = divmod(problem.k, isa.block(element))
    args: Args = {
        "y": y.ref + blocks * y.strides.cb,
        "image": y.strides.n,
        "batch": problem.n,
        "pixels": problem.oh * problem.ow,
    }
    return Step(zero_tail_lanes, ZeroTailTile(isa.lanes, valid, element), args)
