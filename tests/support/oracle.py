"""Random operands, and the check that every kernel test ends in: a plan against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

import cpuconv
import layouts
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate, assemble, padded_bias
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Ref
from cpuconv.kernels.binding.steps import Operands as StepOperands
from cpuconv.memory.aligned import aligned
from cpuconv.memory.workspaces import Workspace, Workspaces
from cpuconv.network.running.recording import Recording
from cpuconv.problem import reference
from cpuconv.problem.arrays import address
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.threads import maximum_threads
from cpuconv.solvers import TABLE
from cpuconv.solvers.shared.solver import Solver
from cpuconv.tuning.checking import ERROR_LIMITS
from support.guarded import END, START, named, pages, place
from support.strided import apart, overlapping

SENTINEL = np.float32(-7.25e33)
THREADS = min(2, maximum_threads())
LANES = current().lanes
GROUP = max(2, LANES // 4)  # channels of a group that share a vector with others

# A problem that a solver is made for, by its name; one without a line takes the first that it can run.
HOME: dict[str, ConvProblem] = {
    "direct": ConvProblem(1, 20, 9, 11, 40, 3, 3, pads=(1, 1, 1, 1)),
    "pointwise": ConvProblem(1, 20, 9, 11, 40, 1, 1),
    "planar": ConvProblem(1, 20, 9, 11, 40, 1, 1),
    "channels_last": ConvProblem(1, 20, 9, 11, 48, 1, 1, in_layout="NHWC", out_layout="NHWC"),
    "strassen": ConvProblem(1, 2 * LANES, 9, 11, 4 * LANES, 1, 1, in_layout="NHWC", out_layout="NHWC"),
    "first_layer": ConvProblem(1, 3, 17, 15, 40, 3, 3, (2, 2), (1, 1, 1, 1)),
    "fft": ConvProblem(1, 20, 13, 30, 40, 5, 7, pads=(2, 2, 3, 3)),
    "depthwise": ConvProblem(1, 37, 9, 11, 37, 3, 3, pads=(1, 1, 1, 1), groups=37),
    "grouped": ConvProblem(1, 9 * GROUP, 9, 11, 9 * GROUP, 3, 3, pads=(1, 1, 1, 1), groups=9),
}


@dataclass(frozen=True)
class Operands:
    """Physical input and residual in the problem's layouts, weights and bias; unit normal, outputs of unit variance."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    residual: np.ndarray | None


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Unit-normal float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def operands(
    problem: ConvProblem,
    seed: int = 0,
    bias: bool = True,
    view: Callable[[np.ndarray], np.ndarray] = np.asarray,
    edge: str = END,
) -> Operands:
    """Operands of a problem against memory that nobody may touch; tail channels are zero.

    view: of the input and of the residual. edge: of the memory of each.
    """

    def activation(shape: tuple[int, int, int, int], layout: str, seed: int) -> np.ndarray:
        return place(view(layouts.from_nchw(normal(shape, seed), layout)), edge)

    scale = np.float32((problem.cg * problem.r * problem.s) ** -0.5)
    return Operands(
        activation(problem.in_shape, problem.in_layout, seed),
        place(normal(problem.weight_shape, seed + 1) * scale, edge),
        place(normal((problem.k,), seed + 2), edge) if bias else None,
        activation(problem.out_shape, problem.out_layout, seed + 3) if problem.residual else None,
    )


class Spoilt(Workspaces):
    """Workspaces of NaN: a kernel that reads what it has not written gives NaN."""

    def take(self, size: int) -> Workspace:
        workspace = super().take(size)
        workspace.memory[: size // 4 * 4].view(np.float32)[:] = np.nan
        return workspace


def plan(
    problem: ConvProblem,
    given: Operands,
    algorithm: str | Candidate | None = None,
    accuracy: str = "fast",
    workspaces: Workspaces | None = None,
) -> Plan:
    """A plan of the problem by the model, by name, or of a candidate, whether its solver lists it or not."""
    if isinstance(algorithm, Candidate):
        packed = algorithm.packing(problem).pack(given.w)
        return Plan(problem, Choice(algorithm, "named"), Limits("fast"), packed, given.bias, workspaces or Spoilt())
    top, bottom, left, right = problem.pads
    return cpuconv.plan(
        problem.in_shape,
        given.w,
        given.bias,
        problem.stride,
        ((top, bottom), (left, right)),
        problem.dilation,
        problem.groups,
        activation=problem.activation,
        residual=problem.residual,
        in_layout=problem.in_layout,
        out_layout=problem.out_layout,
        threads=problem.threads,
        strategy="heuristic",
        accuracy=accuracy,
        algorithm=algorithm,
    )


def expect(y: np.ndarray, expected: np.ndarray, accuracy: str, layout: str, channels: int, about: object = "") -> None:
    """See that a result is within its accuracy class and that tail channels are exactly zero."""
    assert y.shape == expected.shape and y.dtype == np.float32, about
    error = reference.relative_error(y, expected)
    assert error <= ERROR_LIMITS[accuracy], f"{about}: relative error {error:.3g}"
    alone = layouts.from_nchw(layouts.to_nchw(y, layout, channels), layout)
    np.testing.assert_array_equal(alone, y, err_msg=f"{about}: tail channels are not zero")


def run(made: Plan, given: Operands, edge: str = END) -> np.ndarray:
    """A call of the plan that must write every element of its output, and nothing else."""
    shape = layouts.get(made.out_layout).shape(*made.problem.out_shape)
    out = place(np.full(shape, SENTINEL), edge, SENTINEL)
    before = [np.copy(array) for array in (given.x, given.w, given.residual) if array is not None]
    assert named(made, lambda: made(given.x, residual=given.residual, out=out)) is out
    assert not (out == SENTINEL).any(), f"{made}: left outputs unwritten"
    assert (pages(out) != SENTINEL).sum() == out.size, f"{made}: wrote outside of the output"
    after = [array for array in (given.x, given.w, given.residual) if array is not None]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new, err_msg=f"{made}: an input was written")
    return out


def check(
    problem: ConvProblem,
    algorithm: str | Candidate | None = None,
    *,
    accuracy: str = "fast",
    seed: int = 0,
    bias: bool = True,
    view: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Plan:
    """Run a plan on random operands and compare with the oracle; returns the plan.

    All arrays end at memory that nobody may touch, and then begin behind such memory.
    """
    given = operands(problem, seed, bias, view)
    made = named(f"plan of {problem.key} by {algorithm}", lambda: plan(problem, given, algorithm, accuracy))
    y = run(made, given)
    expected = reference.conv2d(given.x, given.w, given.bias, problem, given.residual)
    limit = Candidate.parse(made.algorithm).accuracy
    expect(y, expected, limit, problem.out_layout, problem.k, made)
    again = run(made, operands(problem, seed, bias, view, START), START)
    np.testing.assert_array_equal(again, y, err_msg=f"{made}: the result depends on where arrays lie")
    return made


def check_apart(problem: ConvProblem, candidate: Candidate, seed: int = 0, edge: str = END, parts: int = 0) -> None:
    """Run a recipe whose images lie apart, those of input, output and residual each by another distance.

    `parts`: images of the input overlap by all but one of so many parts of the channels.
    """
    given = operands(problem, seed)
    if parts:
        x = overlapping(given.x, parts, lambda slices: place(slices, edge))
        given = replace(given, x=x.copy())
    else:
        x = place(apart(given.x, 7), edge)
    residual = None if given.residual is None else place(apart(given.residual, 29), edge)
    y = np.empty(layouts.get(problem.out_layout).shape(*problem.out_shape), np.float32)
    y = place(apart(y, 13, SENTINEL), edge, SENTINEL)
    y[...] = SENTINEL

    def operand(name: str, layout: str, array: np.ndarray) -> Operand:
        return Operand(Ref(name), layouts.get(layout).strides(array.strides))

    recipe = assemble(
        problem,
        candidate,
        StepOperands(
            operand("input", problem.in_layout, x),
            operand("output", problem.out_layout, y),
            None if residual is None else operand("added", problem.out_layout, residual),
        ),
    )
    bias = place(padded_bias(problem.k, given.bias, problem.groups), edge)
    workspace = aligned(recipe.workspace // 4)
    workspace[:] = np.nan
    arrays = {"input": x, "output": y, "w": candidate.packing(problem).pack(given.w), "bias": bias}
    arrays |= {"workspace": workspace} | ({} if residual is None else {"added": residual})
    recording = Recording.of(recipe.steps, recipe.threads)
    bound = recording.bind({name: address(array) for name, array in arrays.items()})
    named(f"{candidate} on {problem.key}, images apart", bound.run)
    np.testing.assert_array_equal(x, given.x)
    np.testing.assert_array_equal(residual, given.residual)
    expected = reference.conv2d(given.x, given.w, given.bias, problem, given.residual)
    expect(y, expected, candidate.accuracy, problem.out_layout, problem.k, candidate)
    written = (pages(y) != SENTINEL).sum()
    assert written == y.size, f"{candidate} wrote {written} floats of {y.size}"


SOLVERS = tuple(
    solver for solver in TABLE if any(solver.applicable(problem, current()) is None for problem in HOME.values())
)
"""Those that run problems of float32."""


def kind(solver: Solver) -> str:
    """The line of `HOME` that is the solver's."""
    names = [solver.name] if solver.name in HOME else HOME
    return next(name for name in names if solver.applicable(HOME[name], current()) is None)


def home(solver: Solver) -> ConvProblem:
    """A problem that the solver can run."""
    return HOME[kind(solver)]
