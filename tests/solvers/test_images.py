"""Images of one pixel each: tiles have pixels of several, wherever the images lie."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers import channels_last, pointwise, why_not
from support import oracle, typed

ISA = current()
TYPES = ("f32:f32:f32", "bf16:bf16:f32", "u8:s8:u8", "s8:s8:f32", "u8:s8:s32")
MORE = ({}, {"stride": (2, 3)}, {"threads": 3}, {"activation": "relu"}, {"residual": True})


def problems(types: str, n: int) -> list[ConvProblem]:
    """Odd channels in blocks, channels last in whole blocks, groups."""
    plain = ConvProblem.parse(f"mb{n}ic{5 * ISA.lanes + 3}ih1oc{3 * ISA.lanes - 1}kh1 --dt={types}")
    block = max(ISA.block(plain.types.x), ISA.block(plain.types.y))
    last = replace(plain, c=3 * block, k=2 * block, in_layout="NHWC", out_layout="NHWC")
    return [typed.blocked(plain, types), last, typed.blocked(replace(plain, c=2 * block, k=4 * block, groups=2), types)]


@pytest.mark.exhaustive(5)
@pytest.mark.usefixtures("small_work_is_shared")
@pytest.mark.parametrize("n", (2, 3, 8, 13))
@pytest.mark.parametrize("types", TYPES)
def test_images_of_one_pixel(types: str, n: int) -> None:
    solvers = set()
    for at, (problem, solver) in enumerate(
        itertools.product(problems(types, n), (pointwise.SOLVER, channels_last.SOLVER))
    ):
        more = MORE[(n + at) % len(MORE)]
        if types.endswith("s32"):
            more = {name: value for name, value in more.items() if name not in ("activation", "residual")}
        if solver is channels_last.SOLVER and "stride" in more:
            more = {}
        problem = replace(problem, **more)
        if why_not(solver, problem, ISA) is None:
            solvers.add(solver)
            for params in itertools.islice(solver.candidates(problem, ISA), 2):
                if problem.types == ALL_F32:
                    oracle.check(problem, Candidate(solver, params), seed=at)
                    oracle.check_apart(problem, Candidate(solver, params), seed=at)
                else:
                    typed.check(problem, Candidate(solver, params), at)
    assert solvers == {pointwise.SOLVER, channels_last.SOLVER}


@pytest.mark.parametrize("residual", (False, True))
def test_a_tile_has_pixels_of_several_images(residual: bool) -> None:
    """Unless something is added, which may lie elsewhere than the output."""
    blocks, last, _ = (replace(each, residual=residual) for each in problems("f32:f32:f32", 8))
    rows = {params.rows for params in pointwise.candidates(blocks, ISA)}
    columns = {params.n for params in channels_last.candidates(last, ISA)}
    assert (max(rows) > 1) == (max(columns) > 1) == (not residual)
