"""Where kernels of a choice would be compiled, one that gives the same bits and whose kernels are there serves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpuconv.conv.choice import model, substitutes
from cpuconv.conv.choice.model import AT_HAND, Choice, Limits
from cpuconv.conv.recipe import Candidate, assemble, workspace_bytes
from cpuconv.isa import current
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.tiling import every_tile, tiles_among
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.code import at_hand, cache
from cpuconv.runtime.code.cache import recording_names
from cpuconv.solvers.shared import blocked

LAYOUT = blocked.layout(current())
PROBLEM = ConvProblem(1, 96, 31, 37, 64, 3, 3, pads=(1, 1, 1, 1), in_layout=LAYOUT, out_layout=LAYOUT)
SMALL = ConvProblem(1, 16, 5, 7, 16, 1, 1, in_layout=LAYOUT, out_layout=LAYOUT)
DEPTHWISE = ConvProblem(
    1, 32, 31, 37, 32, 3, 3, pads=(1, 1, 1, 1), groups=32, in_layout=LAYOUT, out_layout=LAYOUT, threads=1
)
SOLVERS = ("direct", "winograd", "im2col")
WANTED = [(gemm_strip, None)]


@pytest.fixture
def known(monkeypatch) -> set[tuple[int, ...]]:
    """Parameters of micro-kernels that are there."""
    made: set[tuple[int, ...]] = set()

    def missing(problem: ConvProblem, candidate: Candidate, closed: bool = False) -> list:
        return [] if (*candidate.micro_kernels.values(),) in made else WANTED

    monkeypatch.setattr(substitutes, "missing", missing)
    monkeypatch.setattr(substitutes, "_tiles", lambda isa, steps: frozenset())  # whatever other tests have compiled
    return made


def _micro(candidate: Candidate) -> tuple[int, ...]:
    return (*candidate.micro_kernels.values(),)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_fastest_at_hand_that_gives_the_same_bits_is_taken(solver, known):
    ranked, taken = model.ranking(PROBLEM, solver), set()
    assert len({each.candidate.rounding for each in ranked}) > 1 or solver != "winograd"
    rng = np.random.default_rng(5)
    for _ in range(20):
        known.clear()
        known.update(_micro(ranked[at].candidate) for at in rng.integers(0, len(ranked), 3))
        found = substitutes.find_substitute(PROBLEM, Limits(), ranked[0].candidate)
        there = [
            each
            for each in ranked
            if _micro(each.candidate) in known and each.candidate.rounding == ranked[0].candidate.rounding
        ]
        assert found.candidate == (there or ranked)[0].candidate
        assert bool(found.missing) == (_micro(ranked[0].candidate) not in known)
        assert found.loss == pytest.approx(1 - ranked[0].cost.estimate / (there or ranked)[0].cost.estimate)
        taken.add(found.candidate != ranked[0].candidate)
    assert taken == {True, False}


def test_the_limits_of_the_call_stay(known):
    ranked = model.ranking(PROBLEM, "winograd")
    limits = Limits(workspace=min(workspace_bytes(PROBLEM, each.candidate) for each in ranked))
    best = next(each for each in ranked if model.why_excluded(PROBLEM, each, limits) is None)
    known.update(_micro(each.candidate) for each in ranked)
    known.discard(_micro(best.candidate))
    found = substitutes.find_substitute(PROBLEM, limits, best.candidate)
    assert workspace_bytes(PROBLEM, found.candidate) <= limits.workspace
    assert found.candidate.rounding == best.candidate.rounding


def test_each_set_of_micro_kernels_is_looked_for_once(monkeypatch):
    asked: list[tuple[int, ...]] = []

    def missing(problem: ConvProblem, candidate: Candidate, closed: bool = False) -> list:
        asked.append(_micro(candidate))
        return WANTED

    monkeypatch.setattr(substitutes, "missing", missing)
    monkeypatch.setattr(substitutes, "_tiles", lambda isa, steps: frozenset())  # of this machine's cache
    ranked = model.ranking(PROBLEM, "direct")
    assert substitutes.find_substitute(PROBLEM, Limits(), ranked[0].candidate) == (ranked[0].candidate, WANTED, 0.0)
    assert len(asked) == 1 + len({*asked}), "the best one is asked for by itself"
    assert {*asked} >= {_micro(each.candidate) for each in ranked} and len(asked) < len(ranked)


def _compile(problem: ConvProblem, candidate: Candidate) -> None:
    for step in assemble(problem, candidate).steps:
        step.compile()


def test_kernels_are_there_once_they_are_compiled():
    candidate = model.ranking(SMALL, "pointwise")[0].candidate
    _compile(SMALL, candidate)
    with recording_names() as names:
        assert not substitutes.missing(SMALL, candidate)
    with recording_names() as nothing:
        pass
    assert names == nothing, "what is looked for is not what a program is made of"


@pytest.mark.parametrize(("problem", "solver"), [(SMALL, "pointwise"), (PROBLEM, "direct"), (DEPTHWISE, "depthwise")])
def test_a_tile_beyond_the_best_few_serves(problem, solver, monkeypatch):
    """Candidates list the best tiles of a size; that of a much smaller one is not among them, and yet is taken."""
    few = model.ranking(problem, solver)
    best, module = few[0].candidate, few[0].candidate.solver
    with tiles_among(frozenset(every_tile(current()))):
        every = [Candidate(module, each) for each in module.candidates(problem, current())]
    assert {each.candidate for each in few} < {*every}
    other = next(each for each in reversed(every) if each not in {one.candidate for one in few})
    there = {at_hand.name_of(*each) for step in assemble(problem, other).steps for each in step.kernels()}
    monkeypatch.setattr(at_hand, "is_named_at_hand", there.__contains__)
    monkeypatch.setattr(at_hand, "among", there.intersection)
    substitutes._replacements.cache_clear()
    monkeypatch.setattr(at_hand, "state", object)  # nothing that is known of others counts
    found = substitutes.find_substitute(problem, Limits(), best)
    assert found.candidate != best and found.missing
    assert not substitutes.missing(problem, found.candidate)
    assert found.candidate.micro_kernels == other.micro_kernels


def test_names_of_alike_strips_are_those_of_the_strips():
    (step,) = assemble(PROBLEM, model.ranking(PROBLEM, "direct")[0].candidate).steps
    plain = replace(step.args["gemm"].tile, **substitutes._PLAIN)
    for tile, names in substitutes._names(current(), plain).items():
        forms = [replace(plain, v=tile.v, rows=tile.rows, cols=tile.cols, stream=stream) for stream in (False, True)]
        assert {cache.name_of(gemm_strip, each) for each in forms} <= {*names}


def test_what_is_awaited_is_compiled_in_the_background(known, here, monkeypatch):
    told: list = []
    monkeypatch.setattr(substitutes.background, "request", lambda wanted: told.extend(wanted) or True)
    ranked = model.ranking(PROBLEM, "direct")
    best, slow, near = ranked[0], ranked[-1].candidate, ranked[1].candidate
    assert ranked[1].cost.estimate < 1.05 * best.cost.estimate < ranked[-1].cost.estimate
    known.add(_micro(slow))
    choice = Choice(best.candidate, "model")
    found = substitutes.with_kernels_at_hand(PROBLEM, "heuristic", choice, Limits())
    assert found.decided_by == AT_HAND and found.awaited == best.candidate and told == WANTED
    assert _micro(found.candidate) == _micro(slow)
    told.clear()
    if _micro(near) != _micro(best.candidate):
        known.add(_micro(near))
        assert (
            substitutes.with_kernels_at_hand(PROBLEM, "heuristic", choice, Limits()) == Choice(near, AT_HAND)
            and not told
        )
    known.add(_micro(best.candidate))
    assert substitutes.with_kernels_at_hand(PROBLEM, "heuristic", choice, Limits()) is choice


def test_what_is_named_or_timed_stays(known):
    ranked = model.ranking(PROBLEM, "direct")
    known.add(_micro(ranked[-1].candidate))
    for strategy, decided_by in (("profile", "model"), ("cached", "named")):
        choice = Choice(ranked[0].candidate, decided_by)
        assert substitutes.with_kernels_at_hand(PROBLEM, strategy, choice, Limits()) is choice
