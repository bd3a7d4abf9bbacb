"""What is asked for and not tuned: the neighbour's algorithm, the miss remembered, the result taken when it comes."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import cpuconv
from autotune.report.explain import explain_stored
from autotune.store.database import StoreWarning
from autotune.store.store import Store
from autotune.tuning.threads import serial_fraction
from autotune.wisdom import tiers
from cpuconv.api.layer import Layer
from cpuconv.conv.choice import model, query, select, tuned
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.sources.nearest_problem import nearest
from cpuconv.conv.plan import Plan
from cpuconv.conv.session import Session
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.kernels.binding.machine import Machine
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import threads as runtime_threads
from cpuconv.tuning.workload import workload
from support import oracle
from support.example import EXPECTED, W, X, close
from support.running import processes
from support.running.events import until
from support.strided import read_only
from support.tuner.stored import DEVICE, timed

PROBLEM = ConvProblem(1, 64, 28, 28, 64, 3, 3, pads=(1, 1, 1, 1))


def plans(here: Session) -> list[Plan]:
    """The plans that conv2d remembers."""
    return [value.plan for _, value in here.cache.items() if isinstance(value, Layer)]


def chosen() -> tuple[str, str]:
    """What runs the problem, and what decided."""
    choice = select.choose(PROBLEM, "cached", Limits())
    return str(choice.candidate), choice.decided_by


def names(problem: ConvProblem, solver: str) -> list[str]:
    """The solver's candidates, the model's favourite first."""
    return [str(ranked.candidate) for ranked in model.ranking(problem, solver)]


def test_a_miss_takes_the_neighbours_algorithm_where_the_model_agrees(
    our_store: Store, here: Session, described: Machine
) -> None:
    ranked = model.within_limits(PROBLEM, Limits())
    first, second = (str(choice.candidate) for choice in ranked[:2])
    favourite = ranked[0].cost.estimate
    assert ranked[1].cost.estimate <= query.AGREES * favourite
    our_store.put([timed(replace(PROBLEM, h=30, w=30), second, 1e-4)])
    assert chosen() == (second, "neighbour")
    account = explain_stored(our_store, DEVICE, workload, PROBLEM.key, float(PROBLEM.flops), 1, "quick")
    assert (account.algorithm, account.decided_by) == (second, "neighbour")
    # The nearer of two counts.
    our_store.put([timed(replace(PROBLEM, h=29, w=28), first, 1e-4)])
    assert nearest(PROBLEM) == first
    # Where the model finds it far slower it is not taken.
    slowest = max(ranked, key=lambda choice: choice.cost.estimate)
    assert slowest.cost.estimate > query.AGREES * favourite
    agreeing = {choice.candidate.solver.name for choice in ranked if choice.cost.estimate <= 1.1 * favourite}
    our_store.put([timed(replace(PROBLEM, h=28, w=29), str(slowest.candidate), 1e-4)])
    here.forget_choices()
    candidate, decided_by = chosen()
    assert decided_by == ("neighbour" if slowest.candidate.solver.name in agreeing else "model")
    assert candidate != str(slowest.candidate)


@pytest.mark.parametrize(
    "changes",
    [{"threads": 2}, {"stride": (2, 2)}, {"in_layout": "NHWC"}, {"groups": 2}, {"groups": 64}, {"dilation": (2, 2)}],
    ids=str,
)
def test_neighbours_are_of_a_kind(our_store: Store, changes: dict) -> None:
    winner = str(model.ranking(PROBLEM)[0].candidate)
    nonsense = PROBLEM.key.replace("g1mb1", "nonsense")
    our_store.put(
        [timed(replace(PROBLEM, **changes), winner, 1e-4), timed(PROBLEM, winner, 1e-4)._replace(problem=nonsense)]
    )
    assert nearest(PROBLEM) is None
    our_store.put([timed(replace(PROBLEM, activation="relu", n=4), winner, 1e-4)])
    assert nearest(PROBLEM) == winner


def test_cold_rows_serve_where_there_is_no_warm_one(our_store: Store, here: Session) -> None:
    first, second = (str(each.candidate) for each in model.ranking(PROBLEM)[:2])
    our_store.put([timed(PROBLEM, first, 2e-4, weights="cold")])
    assert chosen()[0] == first
    our_store.put([timed(PROBLEM, second, 3e-4)])
    here.forget_choices()
    assert chosen() == (second, "store")


def test_misses_are_remembered_and_written_outside_the_call(our_store: Store, here: Session, no_timing) -> None:
    for _ in range(3):
        cpuconv.plan(X.shape, W, padding=1, threads=1)
    close(cpuconv.conv2d(X, W, padding=1, threads=1), EXPECTED)
    key = cpuconv.plan(X.shape, W, padding=1, threads=1).problem.key
    assert our_store.missed(DEVICE) == []
    here.untuned.flush()
    assert our_store.missed(DEVICE) == [(key, 5)]
    cpuconv.plan(X.shape, W, padding=1, threads=1, strategy="heuristic")
    cpuconv.plan(X.shape, W, padding=1, threads=1, algorithm="direct")
    here.untuned.flush()
    assert our_store.missed(DEVICE) == [(key, 5)]


def test_misses_are_bounded(our_store: Store, here: Session) -> None:
    here.untuned.most = 3
    for size in range(4, 12):
        here.untuned.add(replace(PROBLEM, h=size), Limits(), select.is_tuned)
        here.untuned.add(replace(PROBLEM, h=4), Limits(), select.is_tuned)
    assert len(here.untuned.counts) == len(here.untuned.waiting) == 3
    here.untuned.flush()
    assert (replace(PROBLEM, h=4).key, 9) in our_store.missed(DEVICE)


@pytest.mark.parametrize("allowed", [True, False], ids=["full disk", "no permission"])
def test_a_store_that_cannot_be_written_stops_nobody(here: Session, monkeypatch, allowed: bool) -> None:
    asked: list[object] = []

    def refuse(*given: object) -> None:
        asked.append(given)
        raise OSError("disk full")

    monkeypatch.setattr(Store, "add_missed", refuse)
    monkeypatch.setattr(os, "access", lambda *_: allowed)
    here.untuned.add(PROBLEM, Limits(), select.is_tuned)
    here.untuned.flush()
    assert here.untuned.counts == {} and len(asked) == allowed


def test_inference_goes_on_without_a_store_that_is_damaged(our_store: Store, here: Session) -> None:
    our_store.close()
    our_store.path.write_bytes(b"this is no database" * 100)
    with pytest.warns(StoreWarning, match="cannot be read") as caught:
        for _ in range(2):
            close(cpuconv.conv2d(X, W, padding=1, threads=1), EXPECTED)
            here.untuned.flush()
    assert len(caught) == 1
    assert our_store.path.with_name("autotune.sqlite.corrupt-1").exists() and len(our_store.missed(DEVICE)) == 1


def test_what_was_missed_is_taken_once_it_is_tuned(our_store: Store, here: Session) -> None:
    w = read_only(W)
    close(cpuconv.conv2d(X, w, padding=1, threads=1), EXPECTED)
    (before,) = plans(here)
    assert before.decided_by == "model"
    other = names(before.problem, "direct")[0]
    our_store.put([timed(before.problem, other, 1e-4)])
    close(cpuconv.conv2d(X, w, padding=1, threads=1), EXPECTED)
    assert plans(here) == [before]
    here.untuned.settle()
    close(cpuconv.conv2d(X, w, padding=1, threads=1), EXPECTED)
    (after,) = plans(here)
    assert (after.algorithm, after.decided_by) == (other, "store")
    assert cpuconv.plan(X.shape, W, padding=1, threads=1).algorithm == other


def test_what_another_process_tuned_is_noticed_however_late_wisdom_is_looked_at(our_store, here, monkeypatch) -> None:
    here.tiers.recheck_seconds = math.inf
    monkeypatch.setattr(tiers, "writes", lambda: 0)  # this process does not know that it writes
    before = cpuconv.plan(X.shape, W, padding=1, threads=1)
    other = names(before.problem, "direct")[0]
    our_store.put([timed(before.problem, other, 1e-4)])
    assert cpuconv.plan(X.shape, W, padding=1, threads=1).decided_by == before.decided_by == "model"
    here.untuned.settle()
    assert cpuconv.plan(X.shape, W, padding=1, threads=1).decided_by == "store"


def test_choices_are_bounded(here: Session) -> None:
    here.choices.most = 2
    for size in range(4, 9):
        select.choose(replace(PROBLEM, h=size), "heuristic", Limits())
    assert len(here.choices) == 2


@pytest.mark.usefixtures("default_threads")
def test_threads_auto_takes_the_fastest_count(our_store: Store, here: Session, monkeypatch) -> None:
    monkeypatch.setattr(runtime_threads, "maximum_threads", lambda: 4)
    monkeypatch.setattr("cpuconv.api.options.maximum_threads", lambda: 4)
    problem = replace(PROBLEM, c=32, k=32)
    w = oracle.normal((32, 32, 3, 3))
    name = names(problem, "direct")[0]

    def count(threads: object = "auto", **options: object) -> int:
        return cpuconv.plan((1, 32, 28, 28), w, padding=1, threads=threads, **options).problem.threads

    assert count() == count(strategy="heuristic") == 4
    assert sorted(asked.threads for asked in here.untuned.counts) == [1, 2, 4]
    times = {1: 3e-4, 2: 2e-4, 4: 2.5e-4}
    our_store.put([timed(replace(problem, threads=n), name, seconds) for n, seconds in times.items()])
    here.forget_choices()
    assert count() == 2
    cpuconv.set_num_threads("auto")
    assert cpuconv.get_num_threads() == "auto" and count(None) == 2
    # Too little work to share.
    assert cpuconv.plan((1, 4, 4, 4), w[:4, :4, :1, :1], threads="auto").problem.threads == 1
    for bad, error in (("all", ArgumentTypeError), (0, ArgumentError)):
        with pytest.raises(error, match="'threads' must be"):
            count(bad)


def test_profile_compares_threads(our_store: Store) -> None:
    w = oracle.normal((8, 8, 3, 3))
    made = cpuconv.plan((1, 8, 24, 24), w, padding=1, threads="auto", strategy="profile")
    assert made.decided_by == "store"
    rows = {n: tuned.best(replace(made.problem, threads=n), Limits()).row for n in {1, oracle.THREADS}}
    assert min(rows, key=lambda n: rows[n].score) == made.problem.threads
    if len(rows) > 1:
        fraction = serial_fraction({n: row.score for n, row in rows.items()})
        assert rows[1].threads_fraction == pytest.approx(fraction, abs=1e-6)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


PROGRAM = """
import sys, time
import numpy as np
import cpuconv
from cpuconv.conv import session

session.current.untuned.period = 0.2
w = np.random.default_rng(0).standard_normal((8, 8, 3, 3), np.float32)
w.flags.writeable = False
x = np.ones((1, 8, 12, 12), np.float32)
tuner = cpuconv.tune_in_background()
assert cpuconv.tune_in_background() is tuner
decided = ""
while decided != "store":
    cpuconv.conv2d(x, w, padding=1, threads=1)
    (decided,) = (layer.plan.decided_by for _, layer in session.current.cache.items() if hasattr(layer, "plan"))
    time.sleep(0.1)
print(tuner.pid, decided)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process numbers to look for there")
def test_results_of_the_background_arrive_and_the_process_ends_with_ours(own_store: Path) -> None:
    pid, decided = processes.run("-c", PROGRAM, CPUCONV_CACHE_DIR=str(own_store)).stdout.split()
    assert decided == "store"
    until(lambda: not is_running(int(pid)))
