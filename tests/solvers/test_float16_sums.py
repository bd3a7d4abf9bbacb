"""Sums of float16 in blocks: within the bound that they state, the same bits for all tiles, and for `fast` alone."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.conv.choice.model import Choice, Limits, cheapest
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F16
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.isa.features import has_feature
from cpuconv.kernels.products.closed.closed_set import has_closed_set
from cpuconv.kernels.products.gemm_halves import BLOCK
from cpuconv.problem import activation as activations
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import BY_NAME, TABLE, why_not
from cpuconv.solvers.shared import float16_sums, transformed, winograd_tiles
from cpuconv.solvers.shared.solver import Solver
from support import oracle, typed

SOLVERS = [solver for solver in TABLE if solver.name.endswith("_f16")]
ADDS = has_feature("fullfp16")
UNIT = 2.0**-11  # relative error of a rounding to float16

needed = pytest.mark.skipif(not ADDS, reason="this CPU does not add float16")


def problem_for(solver: Solver, text: str, threads: int = 1) -> ConvProblem | None:
    plain = typed.of_types(ConvProblem.parse(text, threads=threads), "f16:f16:f16")
    last = solver.name.startswith("channels_last")
    found = typed.replace(plain, in_layout="NHWC", out_layout="NHWC") if last else typed.blocked(plain, "f16:f16:f16")
    return None if why_not(solver, found, current()) else found


def rounding(solver: Solver, params: object) -> list[int]:
    return [getattr(params, name) for name in solver.rounding]


def test_rows_depend_on_the_types_of_sums() -> None:
    """A change of `float16_sums.py` makes rows of these solvers stale, and no others."""
    assert SOLVERS and all(float16_sums.__name__ in solver.modules for solver in SOLVERS)
    by_sums = {Candidate(solver, None).sources for solver in SOLVERS}
    assert not by_sums & {Candidate(solver, None).sources for solver in TABLE if solver not in SOLVERS}


@needed
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_errors_are_within_the_bound(solver: Solver) -> None:
    count = 0
    dense = "ic520ih5iw7oc24kh1", "ic21ih6oc20kh3ph1", "ic8ih4oc12kh1 act=silu res=1", "mb2g2ic32ih5oc48kh3ph1"
    depthwise = "mb2g20ic20ih9iw7oc20kh3ph1 act=relu", "g16ic16ih8oc16kh5sh2ph2 res=1"
    whole = "mb2ic24ih7iw5oc16kh3ph1 act=silu res=1", "g2ic32ih6oc32kh3ph1 act=gelu res=1"
    for seed, text in enumerate((*dense, *depthwise, *whole)):
        if (problem := problem_for(solver, text)) is None:
            continue
        count += 1
        params = list(solver.candidates(problem, current()))
        params = [each for each in params if rounding(solver, each) == rounding(solver, params[-1])]
        outputs = [typed.check(problem, Candidate(solver, each), seed) for each in params[:: len(params) - 1 or 1]]
        for other in outputs[1:]:
            np.testing.assert_array_equal(other, outputs[0])
        given = typed.operands(problem, seed)
        x, w = (np.abs(each.astype(np.float64)) for each in (given.x, given.w))
        added = None if given.residual is None else np.abs(given.residual)
        expected = reference.conv2d(given.x, given.w, given.bias, problem, given.residual)
        total = reference.conv2d(x.astype(np.float16), w.astype(np.float16), np.abs(given.bias), problem, added)
        terms = problem.r * problem.s + 1 if solver.name == "depthwise_f16" else BLOCK
        allowed = (1 + 2 * UNIT) * UNIT * (terms * total + np.abs(expected)) + 1e-6
        apart = np.abs(outputs[0].astype(np.float64) - expected)
        assert (apart <= allowed).all() or solver.rounding
        assert apart.max() <= 4e-3 * np.abs(expected).max(), solver.name  # as measured: a tenth of the bound
    assert count


@needed
@pytest.mark.skipif(not has_closed_set(current()), reason="open sizes have the kernels of known ones")
@pytest.mark.parametrize("text", ["ic520ih5iw9oc40kh1", "ic21ih6oc20kh3ph1 act=silu res=1", "g20ic20ih9oc20kh3ph1"])
def test_open_sizes(text: str) -> None:
    problem = typed.blocked(ConvProblem.parse(text, threads=1), "f16:f16:f16")
    limits = Limits("fast", closed=True)
    found = cheapest(problem, limits).candidate
    assert "_f16" in found.solver.name
    given = typed.operands(problem, 1)
    packed = found.packing(problem, closed=True).pack(given.w.view(np.float16))
    typed.judge(Plan(problem, Choice(found, "named"), limits, packed, given.bias, oracle.Spoilt()), given)


@needed
@pytest.mark.parametrize("channels", [16, 200])
def test_errors_of_winograd_are_as_stated(channels: int) -> None:
    solver = BY_NAME["winograd_f16"]
    problem = problem_for(solver, f"ic{channels}ih8oc16kh3ph1")
    assert problem is not None
    params = list(solver.candidates(problem, current()))
    assert {(2, 2)} <= {(each.rows, each.cols) for each in params} and (4, 4) not in {(e.rows, e.cols) for e in params}
    for tile in {(each.rows, each.cols): each for each in params}.values():
        y, given = typed.check(problem, Candidate(solver, tile)), typed.operands(problem, 0)
        error = reference.relative_error(y, reference.conv2d(given.x, given.w, given.bias, problem))
        summed = typed.replace(problem, types=typed.replace(problem.types, sum=F16))
        stated = winograd_tiles.error(summed, (tile.rows, tile.cols))
        assert stated / 20 < error <= stated <= transformed.LARGEST_HALF_ERROR


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


@needed
@pytest.mark.parametrize("name", ["silu", "sigmoid", "relu6", "tanh", "hardswish"])
def test_activations(name: str) -> None:
    """For every float16: within 3e-3 of the result and 5e-4; NaN stays; a whole and a single last vector agree."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(1, 1, 256, 256)
    one = np.ones((1, 1, 1, 1), np.float16)
    plans = [
        cpuconv.plan(x.shape, np.repeat(one, k, 0), activation=name, accuracy="fast", algorithm="patches_f16")
        for k in (8, 10)
    ]
    narrow, wide = (plan(x)[:, :1] for plan in plans)
    np.testing.assert_array_equal(narrow, wide)
    with np.errstate(all="ignore"):
        expected = activations.apply(x.astype(np.float64), (name,))
    inside = np.isfinite(x)
    product = name == "hardswish" and np.isneginf(x)  # of infinity and zero
    np.testing.assert_array_equal(np.isnan(narrow), np.isnan(x) | product)
    assert (np.abs(narrow - expected)[inside] <= (3e-3 * np.abs(expected) + 5e-4)[inside]).all()


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_what_they_refuse(solver: Solver) -> None:
    problem = typed.blocked(ConvProblem.parse("ic32ih5oc32kh1"), "bf16:bf16:bf16")
    assert "float16" in str(why_not(solver, problem, current()))
    problem = typed.blocked(ConvProblem.parse("ic32ih5oc32kh1"), "f16:f16:f16")
    if not ADDS:
        assert why_not(solver, problem, current()) == "this CPU does not add float16"
    few = typed.blocked(ConvProblem.parse("ic32ih5oc3kh1"), "f16:f16:f16")
    few = typed.replace(few, **({"r": 3, "s": 3} if solver.rounding else {}))
    reason = "groups are of" if solver.name == "depthwise_f16" else "do not fill vectors"
    assert (reason if ADDS else "float16") in str(why_not(solver, few, current()))
