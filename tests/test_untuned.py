"""What is asked for and not tuned: the neighbour's algorithm, the miss remembered, the result taken when it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
from events import until
from example import EXPECTED, W, X, close

import cpuconv
from autotune.interpreter import python
from autotune.machine.device import fingerprint
from autotune.report.explain import explain_stored
from autotune.store import database
from autotune.store.store import Row, Store
from autotune.tuning.threads import serial_fraction
from cpuconv import session
from cpuconv.choice import model, neighbours, select, tuned
from cpuconv.choice.model import Limits
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.layer import Layer
from cpuconv.memory import choices, untuned_log
from cpuconv.plan import Plan
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.runtime import threads as runtime_threads
from cpuconv.solvers.shared.base import ALIGNMENT
from cpuconv.solvers.shared.machine import Machine
from cpuconv.tuning import speed_probe
from cpuconv.tuning.placement import LEAST, MOST, cold_memory
from cpuconv.tuning.workload import workload

DEVICE = fingerprint().key
PROBLEM = ConvProblem(1, 64, 28, 28, 64, 3, 3, pads=(1, 1, 1, 1))


@pytest.fixture
def store(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of the test's own, with nothing remembered of others."""
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(own_store))
    return Store(own_store / "autotune.sqlite")


def plans() -> list[Plan]:
    """The plans that conv2d remembers."""
    return [value.plan for _, value in session.current.remembered.items() if isinstance(value, Layer)]


def row(problem: ConvProblem, candidate: str, seconds: float, **fields: object) -> Row:
    return Row(
        DEVICE,
        problem.key,
        candidate,
        workload.sources_of(candidate),
        "ok",
        median=seconds,
        spread=0.0,
        count=9,
        score=seconds,
        **fields,
    )


def candidates(problem: ConvProblem, solver: str) -> list[model.Ranked]:
    return [each for each in model.ranking(problem) if solver == each.candidate.solver.NAME]


def test_a_miss_takes_the_neighbours_algorithm_where_the_model_agrees(store: Store, described: Machine) -> None:
    ranked = model.within_limits(PROBLEM, Limits())
    second = ranked[1]
    assert second.cost.estimate <= neighbours.AGREES * ranked[0].cost.estimate
    store.put([row(replace(PROBLEM, h=30, w=30), str(second.candidate), 1e-4)])
    choice = select.choose(PROBLEM, "cached", Limits())
    assert (str(choice.candidate), choice.decided_by) == (str(second.candidate), "neighbour")
    told = explain_stored(store, DEVICE, workload, PROBLEM.key, float(PROBLEM.flops), 1, "quick")
    assert (told.algorithm, told.decided_by) == (str(second.candidate), "neighbour")
    # The nearer of two counts.
    store.put([row(replace(PROBLEM, h=29, w=28), str(ranked[0].candidate), 1e-4)])
    assert neighbours.nearest(PROBLEM) == str(ranked[0].candidate)
    # Where the model finds it far slower it is not taken.
    bad = max(ranked, key=lambda each: each.cost.estimate)
    assert bad.cost.estimate > neighbours.AGREES * ranked[0].cost.estimate
    agreeing = {each.candidate.solver.NAME for each in ranked if each.cost.estimate <= 1.1 * ranked[0].cost.estimate}
    store.put([row(replace(PROBLEM, h=28, w=29), str(bad.candidate), 1e-4)])
    session.current.forget_choices()
    choice = select.choose(PROBLEM, "cached", Limits())
    assert choice.decided_by == ("neighbour" if bad.candidate.solver.NAME in agreeing else "model")
    assert choice.candidate != bad.candidate


def test_neighbours_are_of_a_kind(store: Store) -> None:
    winner = str(model.ranking(PROBLEM)[0].candidate)
    others = (
        replace(PROBLEM, threads=2),
        replace(PROBLEM, stride=(2, 2)),
        replace(PROBLEM, in_layout="NHWC"),
        replace(PROBLEM, groups=2),
        replace(PROBLEM, groups=64),
        replace(PROBLEM, dilation=(2, 2)),
    )
    store.put([row(other, winner, 1e-4) for other in others])
    store.put([replace_key(row(PROBLEM, winner, 1e-4), PROBLEM.key.replace("g1mb1", "nonsense"))])
    assert neighbours.nearest(PROBLEM) is None
    store.put([row(replace(PROBLEM, activation="relu", n=4), winner, 1e-4)])
    assert neighbours.nearest(PROBLEM) == winner


def replace_key(stored: Row, key: str) -> Row:
    return stored._replace(problem=key)


def test_cold_rows_serve_where_there_is_no_warm_one(store: Store) -> None:
    first, second = (str(each.candidate) for each in model.ranking(PROBLEM)[:2])
    store.put([row(PROBLEM, first, 2e-4, regime="cold")])
    assert str(select.choose(PROBLEM, "cached", Limits()).candidate) == first
    store.put([row(PROBLEM, second, 3e-4)])
    session.current.forget_choices()
    choice = select.choose(PROBLEM, "cached", Limits())
    assert (str(choice.candidate), choice.decided_by) == (second, "store")


def test_misses_are_remembered_and_written_outside_the_call(store: Store, monkeypatch, no_timing) -> None:
    for _ in range(3):
        cpuconv.plan(X.shape, W, padding=1, threads=1)
    close(cpuconv.conv2d(X, W, padding=1, threads=1), EXPECTED)
    key = cpuconv.plan(X.shape, W, padding=1, threads=1).problem.key
    assert store.missed(DEVICE) == []
    session.current.untuned.flush()
    assert store.missed(DEVICE) == [(key, 5)]
    cpuconv.plan(X.shape, W, padding=1, threads=1, strategy="heuristic")
    cpuconv.plan(X.shape, W, padding=1, threads=1, algorithm="direct")
    session.current.untuned.flush()
    assert store.missed(DEVICE) == [(key, 5)]


def test_misses_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untuned_log, "MOST", 3)
    for size in range(4, 12):
        session.current.untuned.add(replace(PROBLEM, h=size), Limits(), select.is_tuned)
        session.current.untuned.add(replace(PROBLEM, h=4), Limits(), select.is_tuned)
    assert len(session.current.untuned.counts) == len(session.current.untuned.waiting) == 3
    session.current.untuned.flush()
    assert (replace(PROBLEM, h=4).key, 9) in store.missed(DEVICE)


def test_a_store_that_cannot_be_written_stops_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Store, "add_missed", refuse)
    session.current.untuned.add(PROBLEM, Limits(), select.is_tuned)
    session.current.untuned.flush()
    monkeypatch.setattr(untuned_log, "_is_writable", lambda path: False)
    session.current.untuned.add(PROBLEM, Limits(), select.is_tuned)
    session.current.untuned.flush()
    assert session.current.untuned.counts == {}


def test_inference_goes_on_without_a_store_that_is_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_warned", set())
    store.close()
    store.path.write_bytes(b"this is no database" * 100)
    with pytest.warns(database.StoreWarning, match="cannot be read") as caught:
        for _ in range(2):
            close(cpuconv.conv2d(X, W, padding=1, threads=1), EXPECTED)
            session.current.untuned.flush()
    assert len(caught) == 1
    assert store.path.with_name("autotune.sqlite.corrupt-1").exists() and len(store.missed(DEVICE)) == 1


def test_what_was_missed_is_taken_once_it_is_tuned(store: Store) -> None:
    w = W.copy()
    w.flags.writeable = False
    close(cpuconv.conv2d(X, w, padding=1, threads=1), EXPECTED)
    (before,) = plans()
    assert before.decided_by == "model"
    other = next(str(each.candidate) for each in candidates(before.problem, "direct"))
    store.put([row(before.problem, other, 1e-4)])
    close(cpuconv.conv2d(X, w, padding=1, threads=1), EXPECTED)
    assert plans() == [before]
    session.current.untuned.settle()
    close(cpuconv.conv2d(X, w, padding=1, threads=1), EXPECTED)
    (after,) = plans()
    assert (after.algorithm, after.decided_by) == (other, "store")
    assert cpuconv.plan(X.shape, W, padding=1, threads=1).algorithm == other


def test_choices_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST", 2)
    for size in range(4, 9):
        select.choose(replace(PROBLEM, h=size), "heuristic", Limits())
    assert len(session.current.choices) == 2


def test_threads_auto_takes_the_fastest_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_threads, "maximum_threads", lambda: 4)
    monkeypatch.setattr("cpuconv.options.maximum_threads", lambda: 4)
    problem = replace(PROBLEM, c=32, k=32)
    w = oracle.normal((32, 32, 3, 3))
    name = str(candidates(problem, "direct")[0].candidate)

    def count(**options: object) -> int:
        return cpuconv.plan((1, 32, 28, 28), w, padding=1, threads="auto", **options).problem.threads

    assert count() == count(strategy="heuristic") == 4
    assert sorted(each.threads for each in session.current.untuned.counts) == [1, 2, 4]
    times = {1: 3e-4, 2: 2e-4, 4: 2.5e-4}
    store.put([row(replace(problem, threads=n), name, seconds) for n, seconds in times.items()])
    session.current.forget_choices()
    assert count() == 2
    cpuconv.set_num_threads("auto")
    try:
        assert cpuconv.get_num_threads() == "auto"
        assert cpuconv.plan((1, 32, 28, 28), w, padding=1).problem.threads == 2
    finally:
        monkeypatch.setattr(runtime_threads, "_count", None)
    # Too little work to share.
    assert cpuconv.plan((1, 4, 4, 4), w[:4, :4, :1, :1], threads="auto").problem.threads == 1
    for bad, error in (("all", ArgumentTypeError), (0, ArgumentError)):
        with pytest.raises(error, match="'threads' must be"):
            cpuconv.plan((1, 32, 28, 28), w, padding=1, threads=bad)


def test_profile_compares_threads(store: Store) -> None:
    w = oracle.normal((8, 8, 3, 3))
    made = cpuconv.plan((1, 8, 24, 24), w, padding=1, threads="auto", strategy="profile")
    assert made.decided_by == "store"
    found = {n: tuned.best(replace(made.problem, threads=n), Limits()).row for n in {1, oracle.THREADS}}
    assert min(found, key=lambda n: found[n].score) == made.problem.threads
    if len(found) > 1:
        assert found[1].threads_fraction == pytest.approx(
            serial_fraction({n: each.score for n, each in found.items()}), abs=1e-6
        )


def test_cold_weights_are_others_in_each_run() -> None:
    for name in ("direct", "winograd"):
        candidate = str(candidates(PROBLEM, name)[0].candidate)
        trial = workload.prepare(PROBLEM.key, candidate, "cold")
        assert trial.check() <= trial.limit  # of its own weights
        starts, context = [], trial._plan._contexts[None, None][0]
        for _ in range(10):
            trial.run()
            starts.append(context._addresses["w"])
        assert len({*starts}) == 10
        memory = cold_memory()
        first, last = memory.ctypes.data, memory.ctypes.data + memory.nbytes
        assert all(first <= start <= last - trial._weight.nbytes for start in starts)
        assert np.isfinite(trial._shared.out).all()


def test_trials_of_a_problem_read_and_write_the_same_memory() -> None:
    first, second = (
        workload.prepare(PROBLEM.key, str(candidates(PROBLEM, n)[0].candidate)) for n in ("direct", "im2col")
    )
    assert first._shared is second._shared


@pytest.mark.parametrize("name", ["direct", "im2col", "winograd", "fft"])
def test_trials_move_their_data(name: str) -> None:
    trial = workload.prepare(PROBLEM.key, str(candidates(PROBLEM, name)[0].candidate))
    trial.run()
    before, context = trial._shared.out.copy(), trial._plan._contexts[None, None][0]
    places = []
    for _ in range(20):
        trial.move()
        trial._shared.out[...] = np.nan
        trial.run()
        places.append((trial._shared.x.ctypes.data, trial._shared.out.ctypes.data, *context._addresses.values()))
        np.testing.assert_array_equal(trial._shared.out, before)
    if not trial._plan.workspace_bytes:
        places = [place[:-1] for place in places]
    for found in zip(*places, strict=True):
        assert len(set(found)) > 10
        assert LEAST / 2 < max(found) - min(found) <= MOST
        assert not any(place % ALIGNMENT for place in found)
    assert trial.check() <= trial.limit


@pytest.mark.parametrize("caches", [None, {"L1d": 32 << 10}], ids=["here", "no second cache"])
def test_the_reference_is_of_known_length(caches: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if caches is not None:
        known = replace(fingerprint(), caches=tuple(caches.items()))
        monkeypatch.setattr(speed_probe, "fingerprint", lambda: known)
    monkeypatch.setattr(speed_probe, "_seconds", lambda run: speed_probe._FIRST_TURNS * 1e-6 / 2)
    run = speed_probe.speed_probe.__wrapped__(1)
    (parts,) = run.__defaults__
    assert len(parts) == (1 if caches else 2) or not dict(fingerprint().caches).get("L2")
    assert sum(part.turns * 1e-6 / 2 for part in parts) == pytest.approx(speed_probe.SECONDS)
    run()


def test_the_reference_writes_to_a_quarter_of_the_second_cache() -> None:
    """Which a shared core slows, as it does not the arithmetic."""
    part = speed_probe._write(1)
    size = dict(fingerprint().caches).get("L2")
    if part is None or size is None:
        assert part is size is None
        return
    buffer, seed = part.arrays
    assert 0.2 * size < buffer.nbytes <= 0.25 * size
    buffer[:], seed[:] = 0, 3
    Program([part.row(buffer.nbytes // part.tile.step)], 1).run()
    assert (buffer == 3).all()


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
from cpuconv import session

session.current.untuned.period = 0.2
w = np.random.default_rng(0).standard_normal((8, 8, 3, 3), np.float32)
w.flags.writeable = False
x = np.ones((1, 8, 12, 12), np.float32)
tuner = cpuconv.tune_in_background()
assert cpuconv.tune_in_background() is tuner
decided = ""
while decided != "store":
    cpuconv.conv2d(x, w, padding=1, threads=1)
    (decided,) = (layer.plan.decided_by for _, layer in session.current.remembered.items() if hasattr(layer, "plan"))
    time.sleep(0.1)
print(tuner.pid, decided)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process numbers to look for there")
def test_results_of_the_background_arrive_and_the_process_ends_with_ours(environ, own_store: Path) -> None:
    environ = {**environ, "CPUCONV_CACHE_DIR": str(own_store)}
    done = subprocess.run(python("-c", PROGRAM), env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pid, decided = done.stdout.split()
    assert decided == "store"
    until(lambda: not is_running(int(pid)))
