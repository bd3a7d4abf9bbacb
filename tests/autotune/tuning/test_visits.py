"""The one loop: visits go round all open problems, on data prepared afresh, until it is decided who wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autotune.store.store import Store
from autotune.timing.compare import MIN_ROUNDS
from autotune.timing.rounds import Round
from autotune.tuning import search as tuning
from autotune.tuning import warmup as tuner
from autotune.tuning.effort import EFFORTS
from autotune.tuning.progress import Progress
from autotune.tuning.search import MAX_VISITS, MIN_VISITS, Search, profile
from autotune.tuning.warmup import warmup
from autotune.workload import Verdict
from support.tuner import fake
from support.tuner.fake import problems, rows, workload

pytestmark = pytest.mark.usefixtures("fake_clock")


@pytest.fixture
def prepared(tmp_path: Path, altered: Callable[..., None]) -> Callable[[], list[tuple[str, str]]]:
    """What was bound to data since the test began: problem and candidate."""
    log = tmp_path / "log"
    altered(log=str(log))

    def read() -> list[tuple[str, str]]:
        lines = [line.split() for line in log.read_text().splitlines() if line.startswith("prepare")]
        return [(line[1], line[-1]) for line in lines]

    return read


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `tie` stays open, whatever is found."""
    inner = Search.can_gain
    monkeypatch.setattr(Search, "can_gain", lambda self, names: self.key.startswith("tie") or inner(self, names))


def a_search(kind: str = "tie", effort: str = "quick") -> Search:
    (problem,) = problems(kind)
    candidates, _ = workload.candidates(problem.key, effort)
    tried = {each.name: Verdict("", 1e-7, 1e-5) for each in candidates}
    return Search(workload, problem.key, candidates, tried, effort=EFFORTS[effort])


def after(visits: Sequence[Sequence[dict[str, float]]], kind: str = "tie") -> Search:
    """A search whose visits had rounds of these seconds."""
    search = a_search(kind)
    for number, rounds in enumerate(visits, 1):
        for seconds in rounds:
            search.rounds.add(Round(number, seconds))
            search.ran |= {*seconds}
        search.visits = number
        names = [*rounds[0]]
        search.results.rank(names, search.leader(names))
        search.survivors = search.select_survivors(names)
    return search


def test_the_best_are_timed_again_on_fresh_data_until_it_is_decided(store: Store, prepared) -> None:
    profile(workload, problems("close")[0].key, store)
    times = Counter(name for _, name in prepared())
    assert times == {"model": MIN_VISITS, "best": MIN_VISITS, "a": 1, "b": 1}  # the others are clearly behind


def test_problems_are_visited_in_turn_so_that_no_moment_decides(store: Store, prepared) -> None:
    warmup(workload, problems("tie:1", "tie:2"), store)
    order = [problem for problem, name in prepared() if name == "rival"]
    assert order[:4] == 2 * ["tie:2", "tie:1"]


@pytest.mark.usefixtures("undecided")
def test_what_problems_leave_of_their_time_goes_to_those_that_are_open(
    store: Store, prepared, fake_clock: fake.Clock
) -> None:
    begun = fake_clock.now
    states: list[Progress] = []
    ordered = problems("tie:1", "good:1", "good:2", "good:3")
    outcome = warmup(workload, ordered, store, progress=states.append)
    visits = Counter(problem for problem, name in prepared() if name in ("rival", "fast"))
    assert MIN_VISITS + 2 <= visits["tie:1"] <= MAX_VISITS
    assert visits["good:1"] == visits["good:2"] == visits["good:3"] == MIN_VISITS
    assert fake_clock.now - begun <= 1.1 * len(ordered) * EFFORTS["quick"].seconds
    row = rows(store, ordered[0])["rival"]
    assert row.count == outcome.tuned[ordered[0].task].count >= visits["tie:1"] * MIN_ROUNDS
    assert (states[-1].done, states[-1].fraction, states[-1].left) == (len(ordered), 1.0, 0.0)


@pytest.mark.usefixtures("undecided")
def test_open_problems_are_visited_with_later_batches(store: Store, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "BATCH_SECONDS", 1.0)  # one problem
    monkeypatch.setattr(tuning, "MAX_VISITS", 30)
    warmup(workload, problems("tie:2", "good:1"), store)
    order = [problem for problem, name in prepared() if name in ("rival", "fast")]
    assert "tie:2" in order[order.index("good:1") :]
    assert rows(store, problems("tie:2")[0])["rival"].state == "ok"


def test_how_long_a_sample_lasts_is_settled_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, settled = tuning.calibrate, []
    monkeypatch.setattr(tuning, "calibrate", lambda *about: settled.append(1) or inner(*about))
    profile(workload, problems("tie")[0].key, store)
    assert len(settled) == len(rows(store, problems("tie")[0]))


def interrupted(problem: str, visit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as that visit of the problem begins."""
    inner = Search.visit

    def interrupt(self: Search, deadline: float | None = None) -> None:
        if self.key.startswith(problem) and self.visits == visit - 1:
            raise KeyboardInterrupt
        inner(self, deadline)

    monkeypatch.setattr(Search, "visit", interrupt)


@pytest.mark.parametrize(("problem", "visit", "known"), [("good:1", 1, ["tie:2"]), ("good:1", 2, ["tie:2", "good:1"])])
def test_an_interrupt_keeps_what_is_known(
    store: Store, monkeypatch: pytest.MonkeyPatch, problem: str, visit: int, known: list[str]
) -> None:
    asked = {each.key.split()[0]: each for each in problems("tie:2", "good:1")}
    with monkeypatch.context() as patch:
        interrupted(problem, visit, patch)
        with pytest.raises(KeyboardInterrupt):
            warmup(workload, [*asked.values()], store)
    for name, each in asked.items():
        assert {row.state for row in rows(store, each).values()} == ({"provisional"} if name in known else set())
    assert {*warmup(workload, [*asked.values()], store).tuned} == {each.key for each in asked.values()}


@pytest.mark.usefixtures("undecided")
def test_an_interrupt_of_open_problems_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "BATCH_SECONDS", 1.0)  # one problem
    monkeypatch.setattr(tuner, "decide_all", lambda searches, *more: settled.append(searches) or inner(searches, *more))
    settled, inner = [], tuning.decide_all
    tie, good = problems("tie:2", "good:1")
    with monkeypatch.context() as patch:
        interrupted("good:1", 2, patch)
        with pytest.raises(KeyboardInterrupt):
            warmup(workload, [tie, good], store)
    (search,) = settled[0]
    assert rows(store, tie)["rival"].state == "ok"
    assert rows(store, tie)["rival"].count == len(search.rounds.samples("rival"))
    assert warmup(workload, [tie, good], store).resumed == [tie.key]


def test_who_fails_when_timed_again_is_out(store: Store, altered: Callable[..., None]) -> None:
    inner, times = fake.Fake.prepare, Counter()

    def prepare(self: fake.Fake, key: str, name: str, weights: str = "warm") -> fake.FakeTrial:
        times[name] += 1
        if name == "best" and times[name] == 2:
            raise MemoryError("no more")
        return inner(self, key, name, weights)

    altered(prepare=prepare)
    (problem,) = problems("close")
    assert profile(workload, problem.key, store).candidate == "model"  # all that is proven
    found = rows(store, problem)["best"]
    assert (found.state, found.reason) == ("rejected", "run: MemoryError: no more")


def test_a_lucky_place_in_memory_does_not_win(store: Store, altered: Callable[..., None]) -> None:
    inner, prepared = fake.Fake.prepare, Counter()

    def prepare(self: fake.Fake, key: str, name: str, weights: str = "warm") -> fake.FakeTrial:
        trial = inner(self, key, name, weights)
        prepared[name] += 1
        if name == "rival" and prepared[name] == 1:
            trial.seconds *= 0.95
        return trial

    altered(prepare=prepare)
    assert profile(workload, problems("tie")[0].key, store).candidate == "model"
    assert prepared["rival"] >= MIN_VISITS


def test_a_gain_must_be_worth_it_and_beyond_noise_and_seen_twice() -> None:
    def best(*gains: float, visits: int) -> str:
        search = after([[{"model": gain, "rival": 1.0} for gain in gains]] * visits)
        return min(search.scores(), key=search.scores().__getitem__)

    assert best(*[1.03] * 9, visits=2) == "rival"
    assert best(*[1.01] * 9, visits=2) == "model"  # too little
    assert best(*[1.2, 0.92] * 5, visits=2) == "model"  # noise
    assert best(1.03, 1.03, visits=1) == "model"  # too few rounds to tell
    assert best(*[1.03] * 9, visits=1) == "rival"  # all that is known yet
    once = after([[{"model": 1.03, "rival": 1.0}] * 9, [{"rival": 1.0}] * 9])
    assert not once.is_proven("rival")
    lucky = after([[{"model": 1.1, "rival": 1.0}] * 30, [{"model": 1.0, "rival": 1.0}] * 3])
    assert lucky.rounds.compare("model", "rival").low > 1.05 and not lucky.is_proven("rival")


def test_a_problem_is_open_until_nobody_can_gain() -> None:
    noisy = [{"model": gain, "rival": 1.0} for gain in (1.1, 0.9, 1.03, 0.98, 1.05, 0.95, 1.0)]
    assert after([noisy] * 2).is_open
    assert not after([noisy] * MAX_VISITS).is_open
    equal = [{"model": gain, "rival": 1.0} for gain in (1.004, 0.997, 1.001, 0.999, 1.003, 1.0, 0.998)]
    assert after([equal]).is_open  # one moment decides nothing
    assert not after([equal] * 2).is_open
    behind = [{"model": 1.0, "rival": 1.2}] * 7
    assert after([behind] * 2).is_open is False


def test_the_models_choice_stays_until_it_is_beaten_twice() -> None:
    search = a_search("good")
    search.visit()
    assert search.survivors == ["fast", "model"]
    search.visit()
    assert (search.survivors, search.is_open) == (["fast"], False)
    assert len(search.rounds.samples("model")) == 2 * MIN_ROUNDS


def test_only_so_many_survive() -> None:
    search = a_search("close", "quick")
    search.visit()
    assert len(search.survivors) <= EFFORTS["quick"].survivors + 1
    equal = after([[dict.fromkeys(("model", "a", "b", "best"), 1.0)] * 3], "close")
    assert {*equal.survivors} == {"model", "a", "b", "best"}


def test_nobody_ranks_before_the_leader_where_centres_go_round_in_a_circle() -> None:
    names = ("a", "b", "best")
    turns = ((1e-4, 1.1e-4, 1.21e-4), (1.21e-4, 1e-4, 1.1e-4), (1.1e-4, 1.21e-4, 1e-4))
    search = after([[dict(zip(names, each, strict=True)) | {"model": 9e-4} for each in turns]], "close")
    assert all(
        search.rounds.compare(one, other).centre < 1 for one, other in (("a", "b"), ("b", "best"), ("best", "a"))
    )
    scores = search.scores()
    assert min(scores, key=scores.__getitem__) == search.survivors[0]


def test_times_of_heats_are_in_terms_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_ENTRANTS", 3)
    search = a_search("many", "exhaustive")
    inner, slow = fake.FakeTrial.run, [1.0]

    def run(self: fake.FakeTrial) -> None:  # a machine that slows from run to run
        slow[0] *= 1.0003
        inner(self)
        fake.clock.stand_by(self.seconds * (slow[0] - 1))

    monkeypatch.setattr(fake.FakeTrial, "run", run)
    search.visit()
    assert slow[0] > 1.5
    times, ways = search.results.times, fake.BEHAVIOURS["many"]
    for name, way in ways.items():
        assert times[name] / times["way0"] == pytest.approx(way.seconds / ways["way0"].seconds, rel=0.1)


def test_numbers_of_threads_are_compared_when_all_are_tuned(store: Store) -> None:
    shared = [each for count in (1, 2) for each in problems("shared", count=count)]
    warmup(workload, shared, store)
    for each in shared:
        assert rows(store, each)["model"].threads_fraction == pytest.approx(0.1, abs=0.03)
