"""Candidates whose kernels exist are preferred where the model finds them nearly as fast, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.conv.choice import existing, model, select
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.recipe import Candidate, assemble, workspace_bytes
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.code.cache import NotCompiled, noting
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.solvers.shared import blocked

LAYOUT = blocked.layout(current())
PROBLEM = ConvProblem(1, 96, 31, 37, 64, 3, 3, pads=(1, 1, 1, 1), in_layout=LAYOUT, out_layout=LAYOUT)
SMALL = ConvProblem(1, 16, 5, 7, 16, 1, 1, in_layout=LAYOUT, out_layout=LAYOUT)
SOLVERS = ("direct", "winograd", "im2col")


@pytest.fixture
def known(monkeypatch) -> set[str]:
    """Names of the candidates whose kernels exist, as others do that have the same."""
    names: set[str] = set()

    def exists(problem: ConvProblem, candidate: Candidate) -> bool:
        return any(Candidate.parse(name).micro_kernels == candidate.micro_kernels for name in names)

    monkeypatch.setattr(existing, "exists", exists)
    return names


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_fastest_that_exists_is_taken_where_it_is_nearly_as_fast(solver, known):
    ranked, taken = model.ranking(PROBLEM, solver), set()
    assert len({each.candidate.rounding for each in ranked}) > 1 or solver != "winograd"
    rng = np.random.default_rng(5)
    for slower in (1.0, 1.05, 1.1, 1.5):
        for _ in range(6):
            known.clear()
            known.update(str(ranked[at].candidate) for at in rng.integers(0, len(ranked), 3))
            found = existing.nearly_as_fast(PROBLEM, Limits(), ranked[0], slower)
            limit = slower * ranked[0].cost.estimate
            near = [
                each
                for each in ranked
                if existing.exists(PROBLEM, each.candidate)
                and each.cost.estimate <= limit
                and each.candidate.rounding == ranked[0].candidate.rounding
            ]
            assert found == (near or ranked)[0]
            taken.add(found != ranked[0])
    assert taken == {True, False}


def test_the_limits_of_the_call_stay(known):
    ranked = model.ranking(PROBLEM, "winograd")
    known.update(str(each.candidate) for each in ranked)
    limits = Limits(workspace=min(workspace_bytes(PROBLEM, each.candidate) for each in ranked))
    best = next(each for each in ranked if model.why_excluded(PROBLEM, each, limits) is None)
    known.difference_update(
        name for name in [*known] if Candidate.parse(name).micro_kernels == best.candidate.micro_kernels
    )
    found = existing.nearly_as_fast(PROBLEM, limits, best, 10.0)
    assert model.why_excluded(PROBLEM, found, limits) is None
    assert found.candidate.rounding == best.candidate.rounding


def test_each_set_of_micro_kernels_is_looked_for_once(monkeypatch):
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(existing, "exists", lambda problem, each: bool(asked.append((*each.micro_kernels.values(),))))
    ranked = model.ranking(PROBLEM, "direct")
    assert existing.nearly_as_fast(PROBLEM, Limits(), ranked[0], 100.0) == ranked[0]
    assert len(asked) == 1 + len({*asked}), "the best one is asked for by itself"
    assert {*asked} == {(*each.candidate.micro_kernels.values(),) for each in ranked} and len(asked) < len(ranked)


def test_kernels_exist_once_they_are_compiled(monkeypatch):
    candidate = model.ranking(SMALL, "pointwise")[0].candidate
    for step in assemble(SMALL, candidate).steps:
        step.compile()
    with noting() as names:
        assert existing.exists(SMALL, candidate)
    with noting() as nothing:
        pass
    assert names == nothing, "what is looked for is not what a program is made of"

    class File:
        name = "missing"

    def missing(kernel, tile):
        raise NotCompiled(File)

    monkeypatch.setattr(MicroKernel, "entry", missing)
    assert not existing.exists(SMALL, candidate)


def test_what_is_stored_or_reproducible_stays(known, here):
    ranked = model.ranking(PROBLEM, "direct")
    best, other = ranked[0].candidate, next(each.candidate for each in ranked if each.candidate != ranked[0].candidate)
    known.add(str(other))

    def chosen(decided_by: str, **limits) -> Choice:
        return select.existing(PROBLEM, "heuristic", Limits(**limits), Choice(best, decided_by))

    monkey = Choice(other, "model")
    assert chosen("model") in (monkey, Choice(best, "model"))
    assert chosen("store").candidate == chosen("shipped").candidate == best
    assert chosen("model", reproducible=True).candidate == best


def test_a_choice_stays_when_more_kernels_exist_later(known, here):
    """A size that is made again is made the same way."""
    ranked = model.ranking(PROBLEM, "direct")
    near = [each for each in ranked if each.cost.estimate < 1.1 * ranked[0].cost.estimate]
    other = next(each for each in near if each.candidate.micro_kernels != ranked[0].candidate.micro_kernels)
    known.add(str(other.candidate))
    first = select.existing(PROBLEM, "heuristic", Limits(), Choice(ranked[0].candidate, "model"))
    assert first.candidate.micro_kernels == other.candidate.micro_kernels
    known.add(str(ranked[0].candidate))
    assert select.existing(PROBLEM, "heuristic", Limits(), Choice(ranked[0].candidate, "model")) == first
