"""Rows measured with older kernels: they decide where the cost model agrees, until the problem is tuned again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.report.explain import explain_stored
from autotune.store.store import Row, Store
from autotune.wisdom.tiers import OLDER_KERNELS
from cpuconv.conv import session
from cpuconv.conv.choice import model, query, select, tuned
from cpuconv.conv.choice.explain import explain
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.choice.sources.nearest_problem import nearest
from cpuconv.conv.recipe import workspace_bytes
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.workload import workload
from support.tuner.stored import DEVICE, row, timed

PROBLEM = ConvProblem(1, 64, 28, 28, 64, 3, 3, pads=(1, 1, 1, 1))
RANKED = model.within_limits(PROBLEM, Limits())
FAVOURITE, UNLIKELY = str(RANKED[0].candidate), str(RANKED[-1].candidate)
GONE = ("dowsing(rod=1)", "winograd(shape=round)", "depthwise(rows=1,cols=1)", "direct")  # that no solver lists


@pytest.fixture
def agree(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Say how many times its own choice's estimate the cost model agrees with."""
    return functools.partial(monkeypatch.setattr, query, "AGREES")


@pytest.fixture
def agreeing(agree: Callable[[float], None]) -> None:
    """A cost model that agrees with everything."""
    agree(math.inf)


def current(candidate: str, seconds: float, created: float = 1.0) -> Row:
    return timed(PROBLEM, candidate, seconds, created=created)


def older(candidate: str, seconds: float, problem: ConvProblem = PROBLEM, **values: object) -> Row:
    key = {"device": DEVICE, "problem": problem.key, "sources": "of a release before", "created": 1.0}
    return row(candidate, seconds, **key, **values)


def chosen(problem: ConvProblem = PROBLEM, limits: Limits = Limits()) -> tuple[str, str]:  # noqa: B008 - frozen
    session.current.forget_choices()
    choice = select.choose(problem, "cached", limits)
    return str(choice.candidate), choice.decided_by


def told() -> tuple[str, str]:
    explanation = explain_stored(Store(), DEVICE, workload, PROBLEM.key, float(PROBLEM.flops), 1, "quick")
    return explanation.algorithm, explanation.decided_by


def test_they_decide_before_neighbours_and_the_model(our_store: Store, agreeing: None) -> None:
    our_store.put([older(UNLIKELY, 1e-4), timed(replace(PROBLEM, h=29), FAVOURITE, 1e-4)])
    assert chosen() == told() == (UNLIKELY, OLDER_KERNELS)
    text = str(explain(PROBLEM, Limits(), *chosen()))
    assert "measured with older kernels" in text and "store · older kernels" in text
    assert (PROBLEM, Limits()) in session.current.untuned.waiting  # to be tuned again


def test_they_do_not_decide_where_the_model_disagrees(our_store: Store, agree: Callable[[float], None]) -> None:
    agree(1.0)
    assert RANKED[-1].cost.estimate > RANKED[0].cost.estimate
    our_store.put([older(UNLIKELY, 1e-4)])
    assert chosen() == told()
    assert chosen()[0] == FAVOURITE and chosen()[1] != OLDER_KERNELS
    our_store.put([older(FAVOURITE, 2e-4)])  # the next best is asked then
    assert chosen() == told() == (FAVOURITE, OLDER_KERNELS)


def test_what_no_solver_lists_is_passed_over(our_store: Store, agreeing: None) -> None:
    our_store.put([older(name, n * 1e-6) for n, name in enumerate(GONE, 1)])
    assert chosen() == told() == (FAVOURITE, "model")
    our_store.put([older(UNLIKELY, 1e-4)])
    assert chosen() == told() == (UNLIKELY, OLDER_KERNELS)
    our_store.put([older(GONE[0], 1e-6, problem=replace(PROBLEM, threads=2, h=29))])
    assert nearest(replace(PROBLEM, threads=2)) is None


def test_they_keep_the_limits(our_store: Store, agreeing: None) -> None:
    our_store.put([older(UNLIKELY, 1e-4, accuracy="fast")])
    assert chosen()[1] != OLDER_KERNELS
    our_store.put([older(UNLIKELY, 1e-4, workspace=100)])
    assert chosen() == (UNLIKELY, OLDER_KERNELS)
    # What a candidate needs now counts, too.
    largest = max((each.candidate for each in RANKED), key=lambda each: workspace_bytes(PROBLEM, each))
    needed = workspace_bytes(PROBLEM, largest)
    assert select.untuned(PROBLEM, Limits(workspace=needed), [str(largest)]) == Choice(largest, OLDER_KERNELS)
    assert select.untuned(PROBLEM, Limits(workspace=needed - 1), [str(largest)]).candidate != largest


def test_a_slower_row_that_is_current_comes_after_a_faster_one_that_is_not(
    our_store: Store, agree: Callable[[float], None]
) -> None:
    """One file of kernels was edited: the winner's row is stale, that of another candidate of the same tuning not."""
    other = str(RANKED[1].candidate)
    our_store.put([older(UNLIKELY, 1e-4), current(other, 2e-4)])
    agree(math.inf)
    assert chosen() == told() == (UNLIKELY, OLDER_KERNELS)
    session.current.untuned.settle()  # which is not what a search found: the choice stays, and stays missed
    assert (PROBLEM, Limits()) in session.current.untuned.waiting
    agree(1.0)
    assert chosen() == told() == (other, "store")


def test_tuning_again_replaces_them(our_store: Store, agreeing: None) -> None:
    our_store.put([older(UNLIKELY, 1e-4)])
    assert chosen() == (UNLIKELY, OLDER_KERNELS)
    our_store.put([current(FAVOURITE, 2e-4, created=2.0)])
    session.current.untuned.settle()
    assert session.current.untuned.waiting == {}
    assert chosen() == told() == (FAVOURITE, "store")
    assert tuned.older(PROBLEM, Limits()) == []


def test_they_speak_for_shapes_that_nobody_tuned(our_store: Store, agreeing: None) -> None:
    our_store.put([older(UNLIKELY, 1e-4, problem=replace(PROBLEM, h=30))])
    assert chosen() == (UNLIKELY, "neighbour")
