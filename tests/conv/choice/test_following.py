"""What a size takes over from another: the solver, and its micro-kernels unless others are clearly faster."""

from __future__ import annotations

import pytest

from cpuconv.conv.choice import model, select
from cpuconv.conv.choice.model import Limits
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked

LAYOUT = blocked.layout(current())
LINES = {
    "pointwise": ConvProblem(1, 128, 31, 37, 256, 1, 1, in_layout=LAYOUT, out_layout=LAYOUT),
    "direct": ConvProblem(1, 96, 31, 37, 64, 3, 3, (2, 2), (1, 1, 1, 1), in_layout=LAYOUT, out_layout=LAYOUT),
    "depthwise": ConvProblem(
        1, 96, 31, 37, 96, 5, 5, pads=(2, 2, 2, 2), groups=96, in_layout=LAYOUT, out_layout=LAYOUT
    ),
}


@pytest.mark.parametrize("solver", LINES)
def test_micro_kernels_stay_unless_others_are_clearly_faster(solver):
    problem, limits = LINES[solver], Limits()
    ranked = model.ranking(problem, solver)
    best, kept = ranked[0], 0
    for each in ranked:
        chosen = select.following(problem, "heuristic", limits, str(each.candidate)).candidate
        same = [other for other in ranked if other.candidate.micro_kernels == each.candidate.micro_kernels]
        least = min(other.cost.estimate for other in same)
        if least < select._CLEARLY_SLOWER * best.cost.estimate:
            assert chosen.micro_kernels == each.candidate.micro_kernels
            kept += chosen.micro_kernels != best.candidate.micro_kernels
        elif least > select._CLEARLY_SLOWER * best.cost.estimate:
            assert chosen == best.candidate
    assert kept  # what the model likes less was taken over


def test_a_name_of_another_release_is_no_hindrance():
    problem = LINES["pointwise"]
    assert (
        select.following(problem, "heuristic", Limits(), "pointwise(v=2,tiles=7)").candidate.solver.NAME == "pointwise"
    )
