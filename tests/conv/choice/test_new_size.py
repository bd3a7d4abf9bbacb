"""What a size takes over from another: the solver, and its micro-kernels unless others are clearly faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpuconv.conv.choice import model, select
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.choice.query import Record
from cpuconv.conv.choice.sources.recorded import MAX_REUSE_SLOWDOWN
from cpuconv.conv.recipe import Candidate
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


def from_other_size(problem: ConvProblem, name: str) -> Choice:
    """The selection that follows from that of a candidate for more images."""
    record = Record(replace(problem, n=problem.n + 1), name, "model")
    choice = select.from_record(problem, "heuristic", Limits(), record)
    assert choice is not None
    return choice


@pytest.mark.parametrize("solver", LINES)
def test_micro_kernels_stay_unless_others_are_clearly_faster(solver):
    problem = LINES[solver]
    ranked = model.ranking(problem, solver)
    best, kept = ranked[0], 0
    for each in ranked:
        chosen = from_other_size(problem, str(each.candidate)).candidate
        same = [other for other in ranked if other.candidate.micro_kernels == each.candidate.micro_kernels]
        least = min(other.cost.estimate for other in same)
        if least < MAX_REUSE_SLOWDOWN * best.cost.estimate:
            assert chosen.micro_kernels == each.candidate.micro_kernels
            kept += chosen.micro_kernels != best.candidate.micro_kernels
        elif least > MAX_REUSE_SLOWDOWN * best.cost.estimate:
            assert chosen == best.candidate
    assert kept  # what the model likes less was taken over


def test_a_name_of_another_release_is_no_hindrance():
    problem = LINES["pointwise"]
    assert from_other_size(problem, "pointwise(v=2,tiles=7)").candidate.solver.name == "pointwise"


def test_the_choice_is_that_of_all_candidates():
    """What the solver's bound settles is what costing all of them would."""
    rng, kept = np.random.default_rng(3), 0
    for solver, line in LINES.items():
        names = [str(each.candidate) for each in model.ranking(line, solver)]
        asked = [(names[0], replace(line, n=2))]  # more of the same work, which the same micro-kernels do as well
        for name in rng.choice(names, 3):
            h, w = (int(size) for size in rng.integers(5, 60, 2))
            asked.append((name, replace(line, h=h, w=w, pads=(*line.pads[:1], 0, *line.pads[2:3], 0))))
        for name, problem in asked:
            chosen = from_other_size(problem, name).candidate
            ranked = model.ranking(problem, solver)
            known = Candidate.parse(name).micro_kernels
            same = [each for each in ranked if each.candidate.micro_kernels == known]
            best = ranked[0].cost.estimate
            if same and same[0].cost.estimate < MAX_REUSE_SLOWDOWN * best:
                assert chosen == same[0].candidate
                kept += 1
            else:
                others = [each for each in ranked if each not in same]
                assert chosen == others[0].candidate
            assert model.modelled_cost(problem, chosen).estimate <= MAX_REUSE_SLOWDOWN * best
    assert kept


def test_few_candidates_are_costed_where_the_bound_is_near(monkeypatch):
    problem, costed = LINES["pointwise"], []
    best = model.ranking(problem, "pointwise")[0].candidate
    whole = model.modelled_cost
    monkeypatch.setattr(model, "modelled_cost", lambda asked, each, _: costed.append(each) or whole(asked, each))
    near = replace(problem, n=2)
    assert from_other_size(near, str(best)).candidate.micro_kernels == best.micro_kernels
    assert 0 < len(costed) < len(model.ranking(near, "pointwise")) / 2
