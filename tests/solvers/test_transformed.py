"""What the model makes of transforms, on instruction sets other than this CPU's too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpuconv.isa.table import TABLE, isa_of
from cpuconv.kernels.binding.machine import machine
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import direct, winograd
from cpuconv.solvers.shared import transformed

ZEN4 = isa_of("znver4", "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni,+avx512bf16")


@pytest.mark.parametrize("isa", [*TABLE, ZEN4], ids=lambda isa: f"{isa.name}, {isa.fma_rate} a cycle")
@pytest.mark.parametrize("count", [16, 64])
def test_operations_overlap_with_loads_and_stores(isa, count):
    moves = transformed._transforming(isa, count, 0)
    assert moves == transformed._moves(isa, count) + transformed._CALL
    for operations in (10, 400, 4000):
        compute, found = operations / isa.fma_rate, transformed._transforming(isa, count, operations)
        assert max(moves, compute) < found < moves + compute
        assert transformed._transforming(isa, count, operations, transformed._MISS_BACK) > found


def test_few_channels_in_bfloat16_are_transformed_on_a_zen4():
    """Measured: Winograd in float32 takes 0.65 of the time there."""
    here = replace(machine(), isa=ZEN4)
    problem = ConvProblem(
        1, 37, 87, 87, 28, 3, 3, pads=(1, 1, 1, 1), in_layout="NCHW32c", out_layout="NCHW32c", types=Types.parse("bf16")
    )
    best = {
        solver: min(solver.cost(problem, each, here).estimate for each in solver.candidates(problem, ZEN4))
        for solver in (winograd.SOLVER, direct.SOLVER)
    }
    assert best[winograd.SOLVER] < best[direct.SOLVER]
