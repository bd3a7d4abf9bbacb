"""Trials of every type are judged by what that type promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.workload import check
from cpuconv.elements import to_bfloat16
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.tuning.checking import ERROR_LIMITS, error_of, limit_of
from cpuconv.tuning.random_operands import expected, random_operands
from cpuconv.tuning.workload import workload

PROBLEM = ConvProblem(1, 40, 9, 10, 24, 3, 3, pads=(1, 1, 1, 1), residual=True)
EVERY = [
    *("bf16:bf16:bf16", "bf16:bf16:f32", "f16:f16:f16"),
    *("u8:s8:u8", "s8:s8:s8", "u8:s8:s8", "s8:s8:f32", "u8:s16:u8"),
]


def typed(text: str, **changed: object) -> ConvProblem:
    return replace(PROBLEM, types=Types.parse(text), **changed)


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("text", [*EVERY, "u8:s8:s32"])
@pytest.mark.parametrize("weights", ["warm", "cold"])
def test_candidates_of_every_type_are_right(text: str, weights: str) -> None:
    problem = typed(text, residual=text != "u8:s8:s32")
    candidates, rejected = workload.candidates(problem.key, "quick")
    assert candidates and rejected
    for name in {each.name.partition("(")[0]: each.name for each in candidates}.values():
        trial = workload.prepare(problem.key, name, weights)
        trial.run()
        verdict = check(trial)
        assert verdict.reason == "" and (verdict.limit == 0) == text.startswith(("u8:s8:u8", "s8:s8", "u8:s", "u8:s16"))


@pytest.mark.parametrize("text", [*EVERY, "u8:s8:s32"])
def test_a_wrong_output_is_found(text: str) -> None:
    problem = typed(text, residual=text != "u8:s8:s32")
    trial = workload.prepare(problem.key, workload.candidates(problem.key, "quick")[0][0].name)
    original = trial.plan.run

    def wrong(x: np.ndarray, residual: object, out: np.ndarray, *rest: object) -> None:
        original(x, residual, out, *rest)
        if out.dtype.kind in "iu":
            out.reshape(-1)[77] ^= 1
        else:
            out.reshape(-1)[77] *= out.dtype.type(1.25)
            out.reshape(-1)[78] += out.dtype.type(0.25)

    trial.plan.run = wrong  # type: ignore[method-assign]
    assert "wrong: relative error" in check(trial).reason
    trial.plan.run = lambda *rest: None  # type: ignore[method-assign]
    assert "wrong: relative error" in check(trial).reason


@pytest.mark.parametrize("text", EVERY)
def test_random_results_are_spread_over_their_range(text: str) -> None:
    problem = typed(text)
    given, y = random_operands(problem), expected(problem).astype(np.float64)
    assert given.x.dtype == problem.types.x.outside and given.w.dtype == problem.types.w.outside
    if problem.types.y.integer:
        values, counts = np.unique(y, return_counts=True)
        ends = counts[[0, -1]].sum() / y.size
        assert len(values) > 150 and ends < 0.1
    else:
        assert 0.5 < y.std() < 4
    assert random_operands(problem) is given  # drawn once


def test_bfloat16_is_judged_beyond_its_own_rounding() -> None:
    problem = typed("bf16:bf16:bf16")
    exact = expected(problem)
    y = to_bfloat16(exact.astype(np.float32))
    assert error_of(problem, y, exact) == 0
    assert error_of(problem, y.view(problem.types.y.outside), exact) == 0
    assert error_of(problem, to_bfloat16(exact.astype(np.float32) * np.float32(1.01)), exact) > ERROR_LIMITS["standard"]
    broken = y.copy()
    broken.reshape(-1)[5] = 0x7FC0
    assert error_of(problem, broken, exact) == np.inf
    assert limit_of(problem, "standard") == ERROR_LIMITS["standard"]


def test_integers_are_judged_by_their_bits() -> None:
    problem = typed("u8:s8:u8")
    exact = expected(problem)
    assert error_of(problem, exact, exact) == 0 == limit_of(problem, "fast")
    one_off = exact.copy()
    one_off.reshape(-1)[9] ^= 1
    assert error_of(problem, one_off, exact) > 0


def test_functions_that_are_approximated_may_be_a_step_off() -> None:
    problem = typed("u8:s8:u8", activation="silu")
    exact = expected(problem)
    near = np.where(exact < 255, exact + 1, exact).astype(np.uint8)
    assert error_of(problem, near, exact) == 0
    far = exact.copy()
    far.reshape(-1)[9] ^= 2
    assert error_of(problem, far, exact) > limit_of(problem, "exact") == 0
    real = typed("u8:s8:f32", activation="silu")
    assert limit_of(real, "exact") == ERROR_LIMITS["exact"]
    assert error_of(real, expected(real) * np.float32(1 + 1e-6), expected(real)) < 2e-6


def test_float32_is_judged_as_it_was() -> None:
    exact = expected(PROBLEM)
    y = exact.astype(np.float32)
    assert error_of(PROBLEM, y, exact) == reference.relative_error(y, exact)
    assert [limit_of(PROBLEM, accuracy) for accuracy in ERROR_LIMITS] == [*ERROR_LIMITS.values()]
