"""Warmups: limits kept, kinds of weights apart, threads compared, several at once, memory bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.machine.cores import thread_counts
from autotune.machine.device import fingerprint
from autotune.report.explain import explain_stored
from autotune.store.rows import RowLimits
from autotune.store.store import Row, Store
from autotune.tuning import background, threads, worker
from autotune.tuning.candidates import choose
from autotune.tuning.progress import Progress
from autotune.tuning.search import Search
from autotune.tuning.warmup import Outcome, warmup
from autotune.tuning.worker import Workers
from autotune.workload import Candidate, Problem
from support.running import processes
from support.running.events import until
from support.tuner import fake
from support.tuner.fake import problems, rows, workload

SPEC = "support.tuner.fake:workload"
DEVICE = fingerprint().key


def test_what_does_not_survive_its_first_run_is_rejected(store: Store) -> None:
    (problem,) = problems("unfit")
    outcome = warmup(workload, [problem], store, workers=Workers(SPEC, limit=1.5))
    assert outcome.tuned[problem.task].candidate in ("model", "right")
    found = rows(store, problem)
    assert {name for name, row in found.items() if row.state == "ok"} == {"model", "right"}
    assert found["crashes"].reason.startswith("run: died by SIGSEGV")  # an emulator has more to say
    assert found["stuck"].reason == "run: time limit of 1.5 s passed"
    assert found["fails"].reason == "run: TypeError: no such instruction"
    assert (found["right"].error, found["right"].error_limit) == (1e-7, 1e-5)


class Killed(BaseException):
    """What ends a process at once."""


@pytest.fixture
def killed(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A warmup that is killed when none of its problems is stored as decided yet, and cannot clean up."""

    def run(asked: list[Problem], effort: str = "quick") -> None:
        with monkeypatch.context() as patch, pytest.raises(Killed):

            def die(*_: object) -> None:
                patch.setattr(Store, "put", die)
                raise Killed

            inner = Search.save
            patch.setattr(Search, "save", lambda self, to, **more: inner(self, to, **more) if more else die())
            warmup(workload, asked, store, effort)

    return run


def test_each_race_is_stored_at_once_and_refined_later(store: Store, fake_clock: fake.Clock, killed) -> None:
    asked = problems("good:2", "near:1")
    killed(asked)
    for problem, winner in zip(asked, ("fast", "model"), strict=True):
        found = rows(store, problem)
        assert {row.state for row in found.values()} == {"provisional"}
        assert store.best(DEVICE, problem.key, RowLimits(workload.sources)).candidate == winner
        told = explain_stored(store, DEVICE, workload, problem.key, problem.flops, 1, "quick")
        assert (told.algorithm, told.decided_by, told.lines[0].remark) == (winner, "store", "provisional")
        assert "the next warmup continues" in str(told) and "store · provisional" in str(told)
    assert store.devices()[DEVICE]["provisional"] == 2
    # All are timed again, even those that a decided row would rule out.
    assert {each.name for each in choose(workload, asked[1].key, store, "quick")} == {"model", "other"}
    assert len(warmup(workload, asked, store).tuned) == 2
    assert {row.state for problem in asked for row in rows(store, problem).values()} == {"ok"}
    assert store.devices()[DEVICE]["provisional"] == 0


def test_results_are_stored_early(store: Store, fake_clock: fake.Clock) -> None:
    asked = problems(*(f"good:{n}" for n in range(1, 31)))
    stored: list[int] = []  # problems, when a batch begins to compile
    stages = [""]

    def listen(state: Progress) -> None:
        if state.stage == "compile" != stages[-1]:
            stored.append(sum(bool(rows(store, problem)) for problem in asked))
        stages.append(state.stage)

    warmup(workload, asked, store, progress=listen)
    assert stored == [0, 4, 12, 28]


def test_a_race_does_not_replace_what_was_decided(store: Store, fake_clock: fake.Clock, killed) -> None:
    (problem,) = problems("many")
    warmup(workload, [problem], store)
    before = rows(store, problem)
    killed([problem], "normal")
    assert rows(store, problem) == before


def test_weights_are_tuned_and_stored_apart(store: Store, fake_clock: fake.Clock) -> None:
    (warm,) = problems("weights")
    cold = replace(warm, weights="cold")
    outcome = warmup(workload, [warm, cold], store)
    assert {task: row.candidate for task, row in outcome.tuned.items()} == {warm.task: "model", cold.task: "lean"}
    assert warm.task == warm.key != cold.task
    assert rows(store, warm)["model"].median == pytest.approx(100e-6, rel=0.05)
    assert rows(store, cold)["model"].median == pytest.approx(300e-6, rel=0.05)
    assert {row.weights for row in rows(store, cold).values()} == {"cold"}
    assert sorted(warmup(workload, [warm, cold], store).resumed) == sorted([warm.task, cold.task])


def test_the_slow_come_before_those_of_more_arithmetic(store: Store, altered: Callable[..., None], fake_clock) -> None:
    estimates = {"tie:2": 5e-3, "tie:3": 1e-3, "tie:50": 1e-5}
    inner = fake.Fake.candidates

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list]:
        found, rejected = inner(self, key, effort)
        return [replace(each, estimate=estimates[key]) for each in found], rejected

    altered(candidates=candidates)
    asked = [
        Problem("tie:50", "arithmetic", 50, 1e9, "net"),
        Problem("tie:3", "often", 8, 1e6, "net"),
        Problem("tie:2", "slow", 1, 1e6, "net"),
        Problem("tie:2", "slow again", 1, 1e6, "other"),
    ]
    seen: list[str] = []
    warmup(workload, asked, store, progress=lambda state: seen.append(state.label) if state.ended else None)
    assert seen == ["slow again", "often", "arithmetic"]


def test_few_estimates_are_made_when_the_budget_is_small(
    store: Store, altered: Callable[..., None], fake_clock
) -> None:
    inner = fake.Fake.candidates
    asked = []

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list]:
        asked.append(key)
        fake_clock.now += 0.05
        return inner(self, key, effort)

    altered(candidates=candidates)
    begun = fake_clock.now
    outcome = warmup(workload, problems(*(f"good:{n}" for n in range(1, 200))), store, budget=6.0)
    assert fake_clock.now - begun <= 6.0 * 1.1
    assert outcome.tuned and len(asked) < 50
    assert next(iter(outcome.tuned)).startswith("good:199 ")


@pytest.mark.parametrize("limit", [0.5, 1.0, 2.0])
def test_the_limit_of_a_shape_is_kept(store: Store, fake_clock: fake.Clock, limit: float) -> None:
    asked = problems("many:3", "many:2", "many:1")
    times = [fake_clock.now]
    warmup(
        workload,
        asked,
        store,
        "normal",
        shape_limit=limit,
        progress=lambda state: times.append(fake_clock.now) if state.ended else None,
    )
    assert len(times) == 4
    assert all(later - earlier <= limit * 1.1 for earlier, later in zip(times, times[1:], strict=False))
    assert all(rows(store, problem) for problem in asked)


@pytest.fixture
def hanging_clock(fake_clock: fake.Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fake.Clock:
    """A clock for this process and its workers, on which nothing takes time there but what hangs."""
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))

    def monotonic() -> float:
        if log.exists() and "hangs" in log.read_text():
            fake_clock.stand_by(worker.POLL_SECONDS)
        return fake_clock.now

    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=monotonic))
    return fake_clock


def test_the_limit_of_a_shape_holds_for_what_hangs(store: Store, hanging_clock: fake.Clock) -> None:
    (problem,) = problems("bad")
    begun: list[float] = []
    outcome = warmup(
        workload,
        [problem],
        store,
        workers=Workers(SPEC, 1),
        shape_limit=3.0,
        progress=lambda state: begun.append(hanging_clock.now),
    )
    assert begun[-1] - begun[0] <= 3.0 * 1.1
    assert outcome.tuned[problem.task].candidate in ("model", "right")
    # Not all had their turn: the next warmup goes on.
    assert not warmup(workload, [problem], store, workers=Workers(SPEC, limit=0.5)).resumed


def test_the_budget_holds_for_what_hangs(store: Store, hanging_clock: fake.Clock) -> None:
    begun = hanging_clock.now
    outcome = warmup(workload, problems("bad:3", "bad:2", "good:1"), store, workers=Workers(SPEC, 1), budget=4.0)
    assert hanging_clock.now - begun <= 4.0 * 1.1
    assert outcome.tuned and len(outcome.tuned) + len(outcome.left) == 3


def test_memory_is_bounded(store: Store, fake_clock: fake.Clock) -> None:
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        pytest.skip("no /proc here")
    pages: dict[int, int] = {}

    def watch(state) -> None:
        if state.ended and state.done in (200, 1000):
            pages[state.done] = int(statistics.read_text().split()[1])

    warmup(workload, problems(*(f"good:{n}" for n in range(1, 1001))), store, progress=watch)
    assert (pages[1000] - pages[200]) * os.sysconf("SC_PAGE_SIZE") < 8 << 20


def test_what_another_process_is_at_is_left_to_it(store: Store, fake_clock: fake.Clock) -> None:
    first, second = problems("good:2", "good:1")
    with Store(store.path) as other:
        assert other.claim(DEVICE, first.key, first.weights)
        outcome = warmup(workload, [first, second], store)
        assert (list(outcome.tuned), outcome.left, outcome.elsewhere) == ([second.task], [first.task], [first.task])
        other.release(DEVICE, first.key, first.weights)
    assert list(warmup(workload, [first, second], store).tuned) == [first.task]


def test_what_another_process_finished_meanwhile_is_not_tuned_again(store: Store, fake_clock: fake.Clock) -> None:
    first, second = problems("good:2", "good:1")
    outcome, told = Outcome(), []

    def watch(state) -> None:
        told.append(state)
        if state.ended and state.done == 1:
            second_outcome = warmup(workload, [second], Store(store.path))
            assert second_outcome.tuned or second_outcome.left

    warmup(workload, [first, second], store, progress=watch, outcome=outcome, shape_limit=10.0)
    assert list(outcome.tuned) == [first.task]
    assert (outcome.resumed, outcome.left) == ([second.task], [])
    assert told[-1].fraction == 1.0


def test_seeds_are_tried_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems("many")
    monkeypatch.setattr(Store, "seeds", lambda self, problem, weights="warm": ["way33", "way21"])
    chosen = [candidate.name for candidate in choose(workload, problem.key, store, "quick")]
    assert chosen[:3] == ["way0", "way33", "way21"]


def test_counts_of_threads() -> None:
    assert [thread_counts(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_the_serial_fraction_is_amdahls() -> None:
    for fraction in (0.0, 0.1, 0.5, 1.0):
        times = {n: fraction + (1 - fraction) / n for n in (1, 2, 4, 8)}
        assert threads.serial_fraction(times) == pytest.approx(fraction)
    assert threads.serial_fraction({1: 1.0, 2: 1.3}) == 1.0
    assert threads.serial_fraction({1: 1.0, 2: 0.45}) == 0.0


def test_threads_are_compared(store: Store, fake_clock: fake.Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (1, 2, 4)
    shared = [each for count in counts for each in problems("shared", count=count)]
    serial = [each for count in counts for each in problems("serial", count=count)]
    inner, slow = fake.FakeTrial.run, [1.0]

    def run(self) -> None:
        fake_clock.now += self.seconds * (slow[0] - 1)
        inner(self)

    monkeypatch.setattr(fake.FakeTrial, "run", run)

    def slower(state) -> None:  # a machine that slows from problem to problem: each count is tuned at another speed
        if state.ended:
            slow[0] *= 1.5

    outcome = warmup(workload, [*shared, *serial], store, progress=slower)
    assert len(outcome.tuned) == 6

    def best(family: list[Problem]) -> dict[int, Row]:
        return {each.threads: store.rows(DEVICE, each.key)[0] for each in family}

    found = best(shared)
    for n in counts:
        assert found[n].score / found[1].score == pytest.approx(0.1 + 0.9 / n, rel=0.05)
        assert found[n].threads_fraction == pytest.approx(0.1, abs=0.03)
    found = best(serial)
    assert found[1].score < found[2].score < found[4].score
    assert found[4].threads_fraction == 1.0
    others = rows(store, shared[1])
    assert others["other"].median / others["model"].median == pytest.approx(250 / 220, rel=0.05)
    assert others["other"].threads_fraction != others["other"].threads_fraction  # NaN


def test_the_most_missed_is_tuned_first_in_the_background(store: Store, fake_clock: fake.Clock) -> None:
    keys = [problem.key for problem in problems("good:1", "tie:1")]
    store.add_missed(DEVICE, [(keys[0], 1), (keys[1], 5), ("nonsense", 9)])
    told = [background.tune_missed(workload, store, "quick", None) for _ in range(4)]
    assert told == [True, True, True, False]
    assert [use.label for use in store.problems(DEVICE)] and {use.network for use in store.problems(DEVICE)} == {
        "missed"
    }
    assert store.missed(DEVICE) == []


def test_the_background_process_tunes_and_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", processes.PATH)
    (problem,) = problems("good")
    store.add_missed(DEVICE, [(problem.key, 1)])
    with background.Background(SPEC, store.path, "quick") as first, background.Background(SPEC, store.path, "quick"):
        until(lambda: not store.missed(DEVICE))
        assert first.is_running()
        if hasattr(os, "getpriority"):
            assert os.getpriority(os.PRIO_PROCESS, first.pid) == background.NICENESS
    assert not first.is_running()
    assert rows(store, problem)
    with pytest.raises(ValueError, match="quick, normal, exhaustive, not 'much'"):
        background.Background(SPEC, store.path, "much")
