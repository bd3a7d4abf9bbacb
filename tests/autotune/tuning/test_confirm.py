"""What was tuned with other sources is tuned again only where kernels or candidates are others."""

from __future__ import annotations

import pytest

from autotune.machine.device import fingerprint
from autotune.store.rows import Row, RowLimits
from autotune.store.store import Store
from autotune.tuning.warmup import Outcome, warmup
from autotune.workload import Problem
from support.tuner import fake
from support.tuner.fake import Behaviour, problems, rows, workload

DEVICE = fingerprint().key


@pytest.fixture
def tuned(store: Store, fake_clock: fake.Clock, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A problem that was tuned with the sources before, by candidates whose kernels are known."""
    hashes = {name: f"kernels of {name}" for name in ("model", "a", "best", "b")}
    monkeypatch.setattr(fake.Fake, "kernels_hash", lambda self, key, name: hashes.get(name, ""))
    (problem,) = problems("close")
    warmup(workload, [problem], store)
    assert {row.kernels for row in rows(store, problem).values()} == {*hashes.values()}
    monkeypatch.setenv("FAKE_SOURCES", "sources-2")
    return problem


def again(store: Store, problem: Problem, effort: str = "quick") -> Outcome:
    return warmup(workload, [problem], store, effort)


def test_rows_of_the_same_kernels_are_those_of_today(tuned: Problem, store: Store) -> None:
    before = rows(store, tuned)
    assert store.best(DEVICE, tuned.key, RowLimits.of(workload)).candidate == "best"
    outcome = again(store, tuned)
    assert outcome.resumed == [tuned.task] and not outcome.tuned
    found = store.rows(DEVICE, tuned.key)
    assert len(found) == len(before) and {row.sources for row in found} == {"sources-2"}
    assert all(row == before[row.candidate]._replace(sources="sources-2") for row in found)
    assert store.is_finished(DEVICE, tuned.key, efforts=("quick",), sources={"sources-2"})


def test_a_larger_effort_goes_on(tuned: Problem, store: Store) -> None:
    assert not again(store, tuned, "exhaustive").resumed
    assert again(store, tuned).resumed == [tuned.task]


@pytest.mark.parametrize("other", ["a", "model"])
def test_a_changed_kernel_is_timed_again(tuned: Problem, store: Store, monkeypatch, other: str) -> None:
    monkeypatch.setattr(
        fake.Fake,
        "kernels_hash",
        lambda self, key, name: "changed" if name == other else f"kernels of {name}",
    )
    limits = RowLimits.of(workload)
    assert [row.candidate for row in store.rows(DEVICE, tuned.key) if not limits.is_current(row)] == [other]
    outcome = again(store, tuned)
    assert not outcome.resumed and outcome.tuned[tuned.task].candidate == "best"
    current = [row for row in store.rows(DEVICE, tuned.key) if limits.is_current(row)]
    assert {row.candidate: row.kernels for row in current}[other] == "changed"
    assert len(current) == len({row.candidate for row in current})


def test_a_new_candidate_is_timed(tuned: Problem, store: Store, monkeypatch) -> None:
    monkeypatch.setitem(fake.BEHAVIOURS, "close", {**fake.BEHAVIOURS["close"], "new": Behaviour(50e-6)})
    assert again(store, tuned).tuned[tuned.task].candidate == "new"


def test_a_row_replaces_those_of_its_kernels(store: Store) -> None:
    row = Row("d", "p", "a", "s1", "ok", median=1e-3, score=1e-3, kernels="k")
    store.put([row, row._replace(candidate="b"), row._replace(sources="s0", kernels="before")])
    store.put([row._replace(sources="s2", median=2e-3)])
    assert {(each.candidate, each.sources) for each in store.rows("d", "p")} == {("a", "s2"), ("a", "s0"), ("b", "s1")}
