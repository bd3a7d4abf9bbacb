"""float16 to the last bit, where float32 holds the sums: NaN, infinities, subnormals, ties, what is too large."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F16
from cpuconv.isa import current
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE, why_not
from support import typed

SOLVERS = [solver for solver in TABLE if solver.low_precision]
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def candidates(problem: ConvProblem) -> list[Candidate]:
    """One of each solver that sums as the definition says."""
    able = [solver for solver in SOLVERS if why_not(solver, problem, current()) is None]
    each = [Candidate(solver, next(iter(solver.candidates(problem, current())))) for solver in able]
    found = [candidate for candidate in each if candidate.accuracy == "exact"]
    assert found
    return found


def run(problem: ConvProblem, candidate: Candidate, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    top, bottom, left, right = problem.pads
    plan = cpuconv.plan(
        problem.in_shape, w, None, stride=problem.stride, padding=((top, bottom), (left, right)), groups=problem.groups,
        in_layout=problem.in_layout, out_layout=problem.out_layout, y_dtype=problem.types.y.label, threads=1,
        algorithm=str(candidate),
    )  # fmt: skip
    return layouts.to_nchw(plan(layouts.from_nchw(x, problem.in_layout)), problem.out_layout, problem.k)


def equal(found: np.ndarray, expected: np.ndarray, about: object) -> None:
    """The same bits, signs of zeros aside; any NaN for a NaN."""
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, err_msg=str(about))


@pytest.mark.parametrize("y", ["f16", "f32"])
@pytest.mark.parametrize("text", ["ic1ih256iw256oc1kh1", "g5ic5ih256iw256oc5kh1"])
def test_every_number_comes_out_as_it_went_in(text: str, y: str) -> None:
    problem = typed.blocked(ConvProblem.parse(text), f"f16:f16:{y}")
    x = np.broadcast_to(EVERY.reshape(1, 1, 256, 256), problem.in_shape)
    w = np.ones(problem.weight_shape, np.float16)
    with np.errstate(invalid="ignore"):  # numbers that signal
        expected = x.astype(problem.types.y.dtype)
    for candidate in candidates(problem):
        equal(run(problem, candidate, x, w), expected, candidate)


@pytest.mark.parametrize(
    "least, most, weight",
    [(2.0**-24, 2.0**-14, 0.25), (1.0, 2048.0, 0.5), (32.0, 65504.0, 1.0)],
    ids=["subnormal", "ties", "too large"],
)
@pytest.mark.parametrize(
    "text", ["mb2ic7ih9iw11oc37kh3ph1", "ic33ih7oc17kh1", "ic3ih20iw23oc18kh5ph2sh2", "g9ic9ih9oc9kh3ph1"]
)
def test_sums_are_rounded_once(text: str, least: float, most: float, weight: float) -> None:
    plain = typed.of_types(ConvProblem.parse(text), "f16:f16:f16")
    problem, rng = typed.blocked(plain, "f16:f16:f16"), np.random.default_rng(1)
    count = int(most / least) if most > 2**15 else int(most / least) // 4
    x = (rng.integers(-count, count, problem.in_shape, endpoint=True) * least).astype(np.float16)
    w = (rng.integers(-4, 4, problem.weight_shape, endpoint=True) * weight).astype(np.float16)
    sums = reference.conv2d(x, w, None, plain)
    assert (np.abs(sums) < 2**24 * least * weight).all()  # float32 holds them
    with np.errstate(over="ignore"):
        expected = sums.astype(np.float16)
    assert np.isinf(expected).any() == (most > 2**15) and (expected != sums).any()
    for candidate in candidates(problem):
        equal(run(problem, candidate, x, w), expected, candidate)


def test_sums_may_exceed_float16_on_the_way() -> None:
    x = np.full((1, 64, 3, 3), 60000, np.float16)
    w = np.resize([1, 1, -1, -1], (5, 64, 1, 1)).astype(np.float16)
    w[:, 0] = 0.5
    assert (cpuconv.conv2d(x, w) == -30000).all()
    w[:, 1:] = 1
    assert np.isposinf(cpuconv.conv2d(x, w)).all() and np.isfinite(cpuconv.conv2d(x, w, y_dtype="float32")).all()


def test_not_finite() -> None:
    plain = typed.of_types(ConvProblem.parse("ic20ih9iw14oc35kh3ph1"), "f16:f16:f16")
    problem, rng = typed.blocked(plain, "f16:f16:f16"), np.random.default_rng(2)
    x, w = (rng.integers(1, 5, shape).astype(np.float16) for shape in (problem.in_shape, problem.weight_shape))
    x[0, 1, 4, 5], x[0, 2, 0, 0], x[0, 19, 7, 9] = np.nan, np.inf, -np.inf
    expected = reference.conv2d(x, w, None, plain).astype(np.float16)
    assert 0 < np.isfinite(expected).mean() < 1
    for candidate in candidates(problem):
        equal(run(problem, candidate, x, w), expected, candidate)


def test_a_block_is_one_vector() -> None:
    plan = cpuconv.plan(
        (1, 256, 14, 14), np.ones((256, 256, 3, 3), np.float16), padding=1, in_layout="auto", out_layout="auto"
    )
    assert plan.in_layout == plan.out_layout == f"NCHW{current().block(F16)}c"
