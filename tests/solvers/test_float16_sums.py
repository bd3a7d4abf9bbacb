"""Sums of float16 in blocks: within the bound that they state, the same bits for all tiles, and for `fast` alone."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.conv.recipe import Candidate
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.isa.features import has_feature
from cpuconv.kernels.products.gemm_halves import BLOCK
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE, why_not
from cpuconv.solvers.shared.solver import Solver
from support import typed

SOLVERS = [solver for solver in TABLE if solver.name.endswith("_f16")]
ADDS = has_feature("fullfp16")
UNIT = 2.0**-11  # relative error of a rounding to float16

needed = pytest.mark.skipif(not ADDS, reason="this CPU does not add float16")


def problem_for(solver: Solver, text: str, threads: int = 1) -> ConvProblem | None:
    plain = typed.of_types(ConvProblem.parse(text, threads=threads), "f16:f16:f16")
    last = solver.name.startswith("channels_last")
    found = typed.replace(plain, in_layout="NHWC", out_layout="NHWC") if last else typed.blocked(plain, "f16:f16:f16")
    return None if why_not(solver, found, current()) else found


@needed
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_errors_are_within_the_bound(solver: Solver) -> None:
    count = 0
    for seed, text in enumerate(("ic520ih5iw7oc24kh1", "ic21ih6oc20kh3ph1", "ic8ih4oc12kh1", "mb2g2ic32ih5oc48kh3ph1")):
        if (problem := problem_for(solver, text)) is None:
            continue
        count += 1
        params = list(solver.candidates(problem, current()))
        outputs = [typed.check(problem, Candidate(solver, each), seed) for each in params[:: len(params) - 1 or 1]]
        for other in outputs[1:]:
            np.testing.assert_array_equal(other, outputs[0])
        given = typed.operands(problem, seed)
        x, w = (np.abs(each.astype(np.float64)) for each in (given.x, given.w))
        expected = reference.conv2d(given.x, given.w, given.bias, problem)
        total = reference.conv2d(x.astype(np.float16), w.astype(np.float16), np.abs(given.bias), problem)
        allowed = (1 + 2 * UNIT) * UNIT * (BLOCK * total + np.abs(expected)) + 1e-6
        apart = np.abs(outputs[0].astype(np.float64) - expected)
        assert (apart <= allowed).all()
        assert apart.max() <= 4e-3 * np.abs(expected).max(), solver.name  # as measured: a tenth of the bound
    assert count


@needed
def test_a_sum_in_blocks_is_more_accurate_than_one_in_float16() -> None:
    """Ones: a sum in float16 stays at 2048."""
    problem = problem_for(SOLVERS[0], "ic4096ih2oc16kh1")
    assert problem is not None
    x, w = np.ones((1, 4096, 2, 2), np.float16), np.ones((16, 4096, 1, 1), np.float16)
    candidate = Candidate(SOLVERS[0], next(iter(SOLVERS[0].candidates(problem, current()))))
    options = {"in_layout": problem.in_layout, "out_layout": problem.out_layout, "algorithm": str(candidate)}
    plan = cpuconv.plan(x.shape, w, accuracy="fast", **options)
    assert (layouts.to_nchw(plan(layouts.from_nchw(x, problem.in_layout)), problem.out_layout, 16) == 4096).all()
    with pytest.raises(ArgumentError, match="accuracy"):
        cpuconv.plan(x.shape, w, **options)
    assert "_f16" not in cpuconv.plan(x.shape, w, strategy="heuristic").algorithm


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_what_they_refuse(solver: Solver) -> None:
    problem = typed.blocked(ConvProblem.parse("ic32ih5oc32kh1"), "bf16:bf16:bf16")
    assert "float16" in str(why_not(solver, problem, current()))
    problem = typed.blocked(ConvProblem.parse("ic32ih5oc32kh1"), "f16:f16:f16")
    if not ADDS:
        assert why_not(solver, problem, current()) == "this CPU does not add float16"
    few = typed.blocked(ConvProblem.parse("ic32ih5oc3kh1"), "f16:f16:f16")
    reason = str(why_not(solver, few, current()))
    assert ("do not fill vectors" in reason) if ADDS else reason
