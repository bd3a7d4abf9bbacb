"""Winograd with floats of 16 bits outside and float32 inside: at edges of tiles and of blocks, against the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import layouts
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F32, Element
from cpuconv.isa import current
from cpuconv.problem import reference
from cpuconv.problem.error_bound import MAX_ROUNDING_ERROR
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import why_not, winograd
from cpuconv.solvers.shared import transformed
from support import oracle

pytestmark = pytest.mark.exhaustive

ISA = current()
LANES = ISA.lanes
CHANNELS = [(2 * LANES, 2 * LANES), (4 * LANES + 1, 2 * LANES + 1), (LANES - 1, LANES), (2 * LANES + 3, 3 * LANES - 2)]
TYPES = [Types.parse(text) for text in ("bf16:bf16:bf16", "bf16:bf16:f32", "f16:f16:f16")]
F43 = ConvProblem(2, 2 * LANES, 9, 10, 2 * LANES, 3, 3, pads=(1, 1, 1, 1))


def of_types(problem: ConvProblem, types: Types) -> ConvProblem:
    """The problem in the blocked layouts of these types."""
    names = [layouts.blocked(ISA.block(element)).name for element in (types.x, types.y)]
    return replace(problem, types=types, in_layout=names[0], out_layout=names[1])


def converted(array: np.ndarray, element: Element) -> np.ndarray:
    return array if element == F32 else array.astype(element.outside)


def check(problem: ConvProblem, params: winograd.Params) -> None:
    """Within what the tile states of its error, and the rounding of the result; tail channels are zero."""
    types = problem.types
    given = oracle.operands(problem, 1)
    x, w = converted(given.x, types.x), converted(given.w, types.w)
    residual = None if given.residual is None else converted(given.residual, types.y)
    expected = reference.conv2d(x, w, given.bias, problem, residual)
    candidate = Candidate(winograd.SOLVER, params)
    packed = candidate.packing(problem).pack(w.view(types.w.dtype))
    plan = Plan(problem, Choice(candidate, "named"), Limits("fast"), packed, given.bias, oracle.Spoilt())
    y = plan(x, residual=residual)
    rounding = MAX_ROUNDING_ERROR[types.y.name] * np.abs(expected).max()
    largest = np.abs(expected).max()
    assert np.abs(y.astype(np.float64) - expected).max() <= transformed.LARGEST_ERROR * largest + rounding
    alone = layouts.from_nchw(layouts.to_nchw(y, problem.out_layout, problem.k), problem.out_layout)
    np.testing.assert_array_equal(alone, y)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("c, k", CHANNELS)
@pytest.mark.parametrize("size", [(7, 8), (8, 9), (9, 7)])
def test_edges(types: Types, c: int, k: int, size: tuple[int, int]) -> None:
    problem = of_types(replace(F43, c=c, k=k, h=size[0], w=size[1], residual=True, activation=("sigmoid",)), types)
    for v, n in itertools.product((1, 2), (1, 5)):
        check(problem, winograd.Params(4, 4, v if k > LANES else 1, n, 7, 1))


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize(
    "problem",
    [
        replace(F43, groups=2, c=8 * LANES, k=8 * LANES),
        replace(F43, dilation=(2, 1), pads=(2, 2, 1, 1)),
        replace(F43, r=1, s=5, pads=(0, 0, 2, 2)),
        replace(F43, k=4 * LANES + 1, threads=2, h=30, w=30),
    ],
    ids=lambda problem: problem.shape_key,
)
def test_what_a_solver_lists(types: Types, problem: ConvProblem) -> None:
    problem = of_types(problem, types)
    assert why_not(winograd.SOLVER, problem, ISA) is None
    for params in itertools.islice(winograd.candidates(problem, ISA), 4):
        check(problem, params)


def test_integers_are_refused_in_words() -> None:
    types = Types.parse("u8:s8:u8")
    assert (
        why_not(winograd.SOLVER, replace(F43, types=types), ISA)
        == f"its operands are floats, and sums f32, not {types}"
    )
