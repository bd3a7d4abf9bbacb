"""Search and warmup on a workload that misbehaves."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.machine.device import fingerprint
from autotune.store.rows import RowLimits
from autotune.store.store import Store
from autotune.tuning import worker
from autotune.tuning.candidates import choose
from autotune.tuning.effort import EFFORTS
from autotune.tuning.search import profile
from autotune.tuning.warmup import warmup
from autotune.tuning.worker import Pool, WorkerError, Workers, _Queue
from autotune.workload import Problem, SourceError, Verdict, discover
from baselib.interpreter import python
from support.running import processes
from support.running.events import until
from support.tuner import fake
from support.tuner.fake import problems, rows, workload

pytestmark = pytest.mark.usefixtures("fake_clock")

SPEC = "support.tuner.fake:workload"


def test_the_fastest_is_found_and_stored(store: Store) -> None:
    (problem,) = problems("good")
    best = profile(workload, problem.key, store)
    assert best.candidate == "fast"
    assert best == store.best(fingerprint().key, problem.key, RowLimits(workload.sources))._replace(created=0.0)
    found = rows(store, problem)
    assert found["fast"].median == pytest.approx(100e-6, rel=0.05)
    assert found["fast"].count >= 3
    assert found["fast"].spread < 50e-6
    assert (found["fast"].error, found["fast"].error_limit) == (1e-7, 1e-5)
    assert (found["fast"].workspace, found["fast"].accuracy) == (4096, "exact")
    assert found["slow"].state == "ok"
    assert found["slow"].median == pytest.approx(1000e-6, rel=0.05)


def test_close_candidates(store: Store) -> None:
    assert profile(workload, problems("close")[0].key, store).candidate == "best"


def test_ties_go_to_the_models_choice(store: Store) -> None:
    assert profile(workload, problems("tie")[0].key, store).candidate == "model"


def test_times_are_comparable_though_the_machine_slows(store: Store, fake_clock, monkeypatch) -> None:
    begun = fake_clock.now
    pass_by = fake_clock.pass_by
    # Twice as slow at first, as under another program.
    monkeypatch.setattr(fake_clock, "pass_by", lambda s: pass_by(2 * s if fake_clock.now < begun + 0.15 else s))
    (problem,) = problems("close")
    profile(workload, problem.key, store)
    found = rows(store, problem)
    for name, way in fake.BEHAVIOURS["close"].items():
        assert found[name].median / found["best"].median == pytest.approx(way.seconds / 100e-6, rel=0.04)


def test_what_was_timed_before_keeps_its_place_on_a_slower_day(store: Store, fake_clock, monkeypatch) -> None:
    (problem,) = problems("classes")
    profile(workload, problem.key, store)
    pass_by = fake_clock.pass_by
    monkeypatch.setattr(fake_clock, "pass_by", lambda s: pass_by(10 * s))
    assert profile(workload, problem.key, store, accuracies=("exact", "standard")).candidate == "good"
    found = rows(store, problem)
    assert found["good"].median == pytest.approx(2000e-6, rel=0.05)
    assert found["model"].median == pytest.approx(500e-6, rel=0.05)
    assert store.best(fingerprint().key, problem.key, RowLimits(workload.sources)).candidate == "model"


def test_what_cannot_win_is_not_prepared(store: Store) -> None:
    (problem,) = problems("bounded")
    assert profile(workload, problem.key, store).candidate == "model"
    assert "pruned" in rows(store, problem)["hopeless"].reason
    assert [candidate.name for candidate in choose(workload, problem.key, store, "quick")] == ["model"]


def test_the_bound_prunes_only_what_a_faster_one_can_stand_for(store: Store) -> None:
    (problem,) = problems("classes")
    assert profile(workload, problem.key, store).candidate == "model"
    found = rows(store, problem)
    # The exact one is slower than the fast one can be, but nothing else serves who wants it exact.
    assert found["plain"].state == "ok"
    key = (fingerprint().key, problem.key)
    assert store.best(*key, RowLimits(workload.sources, accuracies=("exact", "standard"))).candidate == "good"
    assert store.best(*key, RowLimits(workload.sources, accuracies=("exact",))).candidate == "plain"
    assert profile(workload, problem.key, store, accuracies=("exact",)).candidate == "plain"
    assert profile(workload, problem.key, store, accuracies=("exact", "standard"), workspace_limit=99).candidate == (
        "plain"
    )


def test_misbehaviour_is_recorded_and_the_rest_goes_on(store: Store) -> None:
    (problem,) = problems("bad")
    outcome = warmup(workload, [problem], store, workers=Workers(SPEC, limit=1.5))
    assert outcome.tuned[problem.key].candidate == "right"
    found = rows(store, problem)
    assert {name for name, row in found.items() if row.state == "ok"} == {"model", "right"}
    assert found["wrong"].reason.startswith("wrong: relative error 5.00e-01 over the limit 1.00e-05")
    assert found["wrong"].error == 0.5
    assert found["nan"].reason.startswith("wrong")
    assert math.isnan(found["nan"].error)
    assert found["raises"].reason == "compile: TypeError: no such instruction"
    assert found["dies"].reason == "compile: process ended with exit code 3 (LLVM ERROR: out of registers)"
    assert found["hangs"].reason == "compile: time limit of 1.5 s passed"
    assert found["unready"].reason == "run: MemoryError: too large"


def test_a_problem_without_a_solution_is_said_to_have_none(store: Store) -> None:
    good, none = problems("good", "none")
    outcome = warmup(workload, [good, none], store)
    assert (list(outcome.tuned), outcome.failed, outcome.left) == ([good.key], [none.key], [])
    assert store.best(fingerprint().key, none.key, RowLimits(workload.sources)) is None


def test_a_second_warmup_tunes_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, altered: Callable[..., None]
) -> None:
    asked = problems("good:1", "tie:1", "good:1")
    first = warmup(workload, asked, store)
    assert len(first.tuned) == 2
    altered(log=str(tmp_path / "log"))
    second = warmup(workload, asked, Store(store.path))
    assert (len(second.resumed), second.tuned) == (2, {})
    assert not (tmp_path / "log").exists()
    monkeypatch.setenv("FAKE_SOURCES", "sources-2")
    assert len(warmup(workload, asked, store).tuned) == 2


def test_the_most_valuable_come_first(store: Store) -> None:
    seen: list[str] = []
    asked = [Problem(f"tie:{n}", f"p{n}", n, 1e6, "net") for n in (2, 9, 4)]
    warmup(workload, asked, store, progress=lambda state: seen.append(state.label) if state.ended else None)
    assert seen == ["p9", "p4", "p2"]


def test_more_effort_looks_again_and_less_does_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems("many")
    warmup(workload, [problem], store)
    assert len(rows(store, problem)) == EFFORTS["quick"].candidates
    outcome = warmup(workload, [problem], store, "normal")
    assert outcome.tuned[problem.key].median < 150e-6
    assert len(rows(store, problem)) == EFFORTS["normal"].candidates
    assert warmup(workload, [problem], store, "quick").resumed == [problem.key]


def test_the_budget_is_kept_and_the_rest_left(store: Store, fake_clock: fake.Clock) -> None:
    asked = problems(*(f"good:{n}" for n in range(1, 30)))
    begun = fake_clock.now
    outcome = warmup(workload, asked, store, budget=5.0)
    assert fake_clock.now - begun < 5.0 * 1.1
    assert outcome.tuned and outcome.left
    assert len(outcome.tuned) + len(outcome.left) == 29
    assert asked[-1].key in outcome.tuned
    again = warmup(workload, asked, store, budget=5.0)
    cut_short = outcome.tuned.keys() - set(again.resumed)  # those that the end of compiling met, one a batch
    assert set(again.resumed) <= outcome.tuned.keys() and len(cut_short) <= 2
    assert again.tuned


def test_progress_rises_and_tells_the_best(store: Store) -> None:
    states = []
    warmup(workload, problems("good", "tie"), store, progress=states.append, workers=Workers(SPEC))
    fractions = [state.fraction for state in states]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert {state.stage for state in states} == {"compile", "time"}
    assert max(state.gflops for state in states) == pytest.approx(10.0, rel=0.05)
    assert states[-1].left == 0.0


def test_an_interrupt_keeps_what_was_finished_and_leaves_no_worker(store: Store, monkeypatch) -> None:
    asked = problems("good:9", "tie:5", "long:1")
    started: list[int] = []
    popen = subprocess.Popen

    def watched(*arguments, **options):
        process = popen(*arguments, **options)
        started.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", watched)

    def interrupt(state) -> None:
        if state.ended and state.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warmup(workload, asked, store, progress=interrupt, workers=Workers(SPEC))
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    rest = warmup(workload, asked, Store(store.path))
    assert rest.resumed == [asked[0].key, asked[1].key]
    assert list(rest.tuned) == [asked[2].key]


def test_unknown_effort(store: Store) -> None:
    with pytest.raises(ValueError, match="quick, normal, exhaustive, not 'much'"):
        warmup(workload, [], store, "much")


def test_workers_that_cannot_start_are_an_error() -> None:
    with (
        Pool(Workers("support.tuner.fake:missing", 1, 5.0)) as pool,
        pytest.raises(WorkerError, match="missing"),
    ):
        pool.run([("good:1", "fast")])


def test_workers_check_with_one_thread_of_blas_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}

    def popen(*arguments: object, env: dict[str, str], **more: object) -> None:
        found.update(env)
        raise OSError("no process")

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with Pool(Workers(SPEC, 1, 1.0)) as pool, pytest.raises(OSError, match="no process"):
        pool.start()
    assert (found["OPENBLAS_NUM_THREADS"], found["MKL_NUM_THREADS"], found["PATH"]) == ("1", "3", os.environ["PATH"])


def test_a_worker_keeps_to_its_problem_and_then_helps_with_others() -> None:
    todo = _Queue([("p", "1"), ("p", "2"), ("q", "1"), ("q", "2"), ("q", "3"), ("r", "1")])
    assert len(todo) == 6
    one, two = todo.next(None), todo.next(None)
    assert (one, two) == (("p", "1"), ("q", "1"))
    assert (todo.next(one), todo.next(two)) == (("p", "2"), ("q", "2"))
    assert todo.next(one) == ("r", "1")  # p is done, and nobody is at r
    assert todo.next(("r", "1")) == ("q", "3")
    assert todo.next(two) is None and len(todo) == 0


def test_a_pool_stops_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Pool(Workers(SPEC, 2, 1e6)) as pool:
        tasks = [("good:1", "fast"), ("bad:1", "hangs")]
        ended = pool.run(tasks, deadline=1.0, done=lambda task: now.append(now.pop() + 1.0))
        assert ended == {("good:1", "fast"): Verdict("", 1e-7, 1e-5)}
        assert pool.run([("good:1", "model")]) == {("good:1", "model"): Verdict("", 1e-7, 1e-5)}


@pytest.mark.skipif(sys.platform == "win32", reason="other signals there")
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    code = """
import os, sys, threading
from autotune.tuning.worker import Pool, Workers
pool = Pool(Workers("support.tuner.fake:workload", 1, 600))
threading.Thread(target=lambda: pool.run([("bad:1", "hangs")]), daemon=True).start()
while pool._workers[0]._tasks == 0 and not os.path.exists(sys.argv[1]): pass
print(pool._workers[0]._process.pid, flush=True)
os._exit(9)
"""
    log = tmp_path / "log"
    environ = {**os.environ, "PYTHONPATH": processes.PATH, "FAKE_LOG": str(log)}
    command = python("-c", code, str(log))
    pid = int(subprocess.run(command, env=environ, capture_output=True, check=False).stdout)
    until(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    assert discover(SPEC) == (SPEC, workload)
    assert isinstance(discover("support.tuner.fake:Fake")[1], fake.Fake)
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", SPEC)
    assert discover()[1] is workload
    for spec, said in [
        ("support.tuner.fake", "module:attribute"),
        ("no_such:x", "no_such"),
        ("support.tuner.fake:x", "'x'"),
    ]:
        with pytest.raises(SourceError, match=said):
            discover(spec)


def test_discovery_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    monkeypatch.delenv("AUTOTUNE_WORKLOAD", raising=False)
    points = [EntryPoint("fake", SPEC, "autotune.workloads")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert discover() == (SPEC, workload)
    points.append(EntryPoint("other", "other:workload", "autotune.workloads"))
    with pytest.raises(SourceError, match="several"):
        discover()
    points.clear()
    with pytest.raises(SourceError, match="no workload"):
        discover()
