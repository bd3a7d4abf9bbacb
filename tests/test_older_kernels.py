"""Rows measured with older kernels: they decide where the cost model agrees, until the problem is tuned again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.machine.device import fingerprint
from autotune.report.explain import explain_stored
from autotune.store.store import Row, Store
from autotune.wisdom.tiers import OLDER
from cpuconv import session
from cpuconv.choice import model, neighbours, select, tuned
from cpuconv.choice.explain import explain
from cpuconv.choice.model import Limits
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import workspace_bytes
from cpuconv.tuning.workload import workload

DEVICE = fingerprint().key
PROBLEM = ConvProblem(1, 64, 28, 28, 64, 3, 3, pads=(1, 1, 1, 1))
RANKED = model.within_limits(PROBLEM, Limits())
FAVOURITE, UNLIKELY = str(RANKED[0].candidate), str(RANKED[-1].candidate)
GONE = ("dowsing(rod=1)", "winograd(shape=round)", "depthwise(rows=1,cols=1)", "direct")  # that no solver lists


@pytest.fixture
def store(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(own_store))
    return Store(own_store / "autotune.sqlite")


@pytest.fixture
def agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cost model that agrees with everything."""
    monkeypatch.setattr(neighbours, "AGREES", float("inf"))


def row(candidate: str, seconds: float, problem: ConvProblem = PROBLEM, created: float = 1.0, **fields: object) -> Row:
    """A current one."""
    made = Row(DEVICE, problem.key, candidate, "", "ok", median=seconds, score=seconds, created=created)
    return made._replace(**{"sources": next(iter(workload.sources)), **fields})


def older(candidate: str, seconds: float, **fields: object) -> Row:
    return row(candidate, seconds, sources="of a release before", **fields)


def chosen(problem: ConvProblem = PROBLEM, limits: Limits = Limits()) -> tuple[str, str]:  # noqa: B008 - frozen
    session.current.forget_choices()
    choice = select.choose(problem, "cached", limits)
    return str(choice.candidate), choice.decided_by


def told() -> tuple[str, str]:
    explanation = explain_stored(Store(), DEVICE, workload, PROBLEM.key, float(PROBLEM.flops), 1, "quick")
    return explanation.algorithm, explanation.decided_by


def test_they_decide_before_neighbours_and_the_model(store: Store, agreeing: None) -> None:
    store.put([older(UNLIKELY, 1e-4), row(FAVOURITE, 1e-4, replace(PROBLEM, h=29))])
    assert chosen() == told() == (UNLIKELY, OLDER)
    text = str(explain(PROBLEM, Limits(), *chosen()))
    assert "measured with older kernels" in text and "store · older kernels" in text
    assert (PROBLEM, Limits()) in session.current.untuned.waiting  # to be tuned again


def test_they_do_not_decide_where_the_model_disagrees(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "AGREES", 1.0)
    assert RANKED[-1].cost.estimate > RANKED[0].cost.estimate
    store.put([older(UNLIKELY, 1e-4)])
    assert chosen() == told()
    assert chosen()[0] == FAVOURITE and chosen()[1] != OLDER
    store.put([older(FAVOURITE, 2e-4)])  # the next best is asked then
    assert chosen() == told() == (FAVOURITE, OLDER)


def test_what_no_solver_lists_is_passed_over(store: Store, agreeing: None) -> None:
    store.put([older(name, n * 1e-6) for n, name in enumerate(GONE, 1)])
    assert chosen() == told() == (FAVOURITE, "model")
    store.put([older(UNLIKELY, 1e-4)])
    assert chosen() == told() == (UNLIKELY, OLDER)
    store.put([older(GONE[0], 1e-6, problem=replace(PROBLEM, threads=2, h=29))])
    assert neighbours.nearest(replace(PROBLEM, threads=2)) is None


def test_they_keep_the_limits(store: Store, agreeing: None) -> None:
    store.put([older(UNLIKELY, 1e-4, accuracy="fast")])
    assert chosen()[1] != OLDER
    store.put([older(UNLIKELY, 1e-4, workspace=100)])
    assert chosen() == (UNLIKELY, OLDER)
    # What a candidate needs now counts, too.
    largest = max((each.candidate for each in RANKED), key=lambda each: workspace_bytes(PROBLEM, each))
    needed = workspace_bytes(PROBLEM, largest)
    assert neighbours.remembered(PROBLEM, [str(largest)], RANKED[0], Limits(workspace=needed)) == largest
    assert neighbours.remembered(PROBLEM, [str(largest)], RANKED[0], Limits(workspace=needed - 1)) is None


def test_a_slower_row_that_is_current_comes_after_a_faster_one_that_is_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file of kernels was edited: the winner's row is stale, that of another candidate of the same tuning not."""
    other = str(RANKED[1].candidate)
    store.put([older(UNLIKELY, 1e-4), row(other, 2e-4)])
    with monkeypatch.context() as patch:
        patch.setattr(neighbours, "AGREES", float("inf"))
        assert chosen() == told() == (UNLIKELY, OLDER)
        session.current.untuned.settle()  # which is not what a search found: the choice stays, and stays missed
        assert (PROBLEM, Limits()) in session.current.untuned.waiting
    monkeypatch.setattr(neighbours, "AGREES", 1.0)
    assert chosen() == told() == (other, "store")


def test_tuning_again_replaces_them(store: Store, agreeing: None) -> None:
    store.put([older(UNLIKELY, 1e-4)])
    assert chosen() == (UNLIKELY, OLDER)
    store.put([row(FAVOURITE, 2e-4, created=2.0)])
    session.current.untuned.settle()
    assert session.current.untuned.waiting == {}
    assert chosen() == told() == (FAVOURITE, "store")
    assert tuned.older(PROBLEM, Limits()) == []


def test_they_speak_for_shapes_that_nobody_tuned(store: Store, agreeing: None) -> None:
    store.put([older(UNLIKELY, 1e-4, problem=replace(PROBLEM, h=30))])
    assert chosen() == (UNLIKELY, "neighbour")
