"""Candidates of other element types than float32, on random operands, against the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

import layouts
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.epilogue_block import Numbers
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F32, Element
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.problem import reference
from cpuconv.problem.error_bound import error_bound
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.quantized_epilogue import is_exact
from cpuconv.problem.types import Types
from cpuconv.solvers import why_not
from cpuconv.solvers.shared.solver import Solver
from cpuconv.tuning.checking import ERROR_LIMITS
from support import oracle, quantized
from support.guarded import END, START, named, pages, place

_OF_FUNCTION = 4e-6
_BLANK = 0xA5  # bytes of outputs that nobody has written


def blocked(problem: ConvProblem, types: str) -> ConvProblem:
    """The problem of those types, in their blocked layouts."""
    made = Types.parse(types)
    names = [layouts.blocked(current().block(element)).name for element in (made.x, made.y)]
    return replace(problem, types=made, in_layout=names[0], out_layout=names[1])


def of_types(problem: ConvProblem, types: str) -> ConvProblem:
    """The problem of those types, without what sums as they are cannot have."""
    plain = {"activation": None, "residual": False} if types.endswith("s32") else {}
    return replace(problem, types=Types.parse(types), **plain)


def check_first(solver: Solver, problem: ConvProblem, most: int = 3, seed: int = 0) -> None:
    """Check the first candidates of a solver, which must take the problem."""
    assert why_not(solver, problem, current()) is None
    for params in itertools.islice(solver.candidates(problem, current()), most):
        check(problem, Candidate(solver, params), seed)


def _outside(array: np.ndarray, element: Element) -> np.ndarray:
    return array.astype(element.outside) if element.half else array


class Given(NamedTuple):
    """Physical input and residual, weights and bias; of integers what they mean."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    residual: np.ndarray | None
    scales: Quantization | None


def operands(problem: ConvProblem, seed: int) -> Given:
    """Operands of a problem; weights of integers are less their zero points."""
    types = problem.types
    if types.sum.integer:
        given = quantized.operands(problem, seed, "u8" if types.w.name == "s16" else "s8")
        points = np.asarray(given.scales.w_zero_point).reshape(-1, 1, 1, 1)
        w = _of_two_sizes((given.w.astype(np.int64) - points).astype(types.w.dtype))
        bias = given.float_bias if seed % 2 else given.bias
        return Given(given.x, w, bias, given.residual, replace(given.scales, w_zero_point=0))
    drawn = oracle.operands(problem, seed)
    residual = None if drawn.residual is None else _outside(drawn.residual, types.y)
    assert drawn.bias is not None
    return Given(_outside(drawn.x, types.x), _outside(drawn.w, types.w), drawn.bias, residual, None)


def _of_two_sizes(w: np.ndarray) -> np.ndarray:
    """Weights, every other tap of every other 32 channels without their lowest bit: kernels tell small ones."""
    tap = sum(np.ix_(np.arange(w.shape[1]) // 32, np.arange(w.shape[2]), np.arange(w.shape[3])))
    return np.where(tap % 2 == 0, w >> 1, w)


def check(problem: ConvProblem, candidate: Candidate, seed: int = 0) -> np.ndarray:
    """Judge a candidate on the operands of a problem; a solver's bound is no more than its estimate."""
    given = operands(problem, seed)
    types, solver = problem.types, candidate.solver
    estimate = solver.cost(problem, candidate.params, machine()).estimate
    assert solver.bound(problem, machine()) <= estimate * (1 + 1e-9), candidate
    packed = candidate.packing(problem).pack(given.w.view(types.w.dtype))
    numbers = Numbers.of(given.w, given.scales) if types.sum.integer else None
    made = Plan(problem, Choice(candidate, "named"), Limits("fast"), packed, given.bias, oracle.Spoilt(), numbers)
    return judge(made, given)


def judge(made: Plan, given: Given) -> np.ndarray:
    """Run a plan on operands at guarded pages; integers equal the oracle, floats are within its bound.

    Every element of the output is written, nothing around it, and channels that fill up blocks are zero.
    """
    x, w, bias, residual, scales = given
    problem, candidate = made.problem, Candidate.parse(made.algorithm)
    types = problem.types
    y, again = (_run(made, x, residual, edge) for edge in (END, START))
    np.testing.assert_array_equal(again, y, err_msg=f"{made}: the result depends on where arrays lie")
    expected = reference.conv2d(x, w, bias, problem, residual, scales)
    about = f"{candidate} on {problem.key}"
    if is_exact(problem):
        np.testing.assert_array_equal(y, expected, err_msg=about)
    elif types.sum.integer:  # what kernels compute of a function may round otherwise
        apart = np.abs(y.astype(np.float64) - expected)
        assert (apart <= (_OF_FUNCTION * (1 + np.abs(expected)) if types.y == F32 else 1)).all(), about
    else:
        allowed = error_bound(x, w, bias, problem, residual)
        if candidate.accuracy != "exact":  # transforms have errors of their own; those of float16 sums precede a clamp
            sums = problem
            if candidate.solver.name.endswith("_f16"):
                sums = replace(problem, activation=None)
            largest = np.abs(reference.conv2d(x, w, bias, sums, residual, scales)).max(initial=0)
            allowed = allowed + ERROR_LIMITS[candidate.accuracy] * largest
        assert (np.abs(y.astype(np.float64) - expected) <= allowed).all(), about
    alone = layouts.from_nchw(layouts.to_nchw(y, problem.out_layout, problem.k), problem.out_layout)
    np.testing.assert_array_equal(alone, y, err_msg=f"{about}: tail channels are not zero")
    return y


def _run(made: Plan, x: np.ndarray, residual: np.ndarray | None, edge: str) -> np.ndarray:
    problem = made.problem
    shape, element = layouts.get(made.out_layout).shape(*problem.out_shape), problem.types.y
    blank = np.full(int(np.prod(shape)) * element.bytes, _BLANK, np.uint8)
    fill = float(np.frombuffer(bytes([_BLANK] * 4), np.float32)[0])
    out = place(blank.view(element.outside).reshape(shape), edge, fill)
    whole = pages(out).view(np.uint8)
    placed = place(x, edge)
    added = None if residual is None else place(residual, edge)
    assert named(made, lambda: made(placed, residual=added, out=out)) is out
    size = out.nbytes
    around = (whole[:-size] if edge == END else whole[size:]) if size else whole
    assert (around == _BLANK).all(), f"{made}: wrote outside of the output"
    np.testing.assert_array_equal(placed, x, err_msg=f"{made}: an input was written")
    return out
