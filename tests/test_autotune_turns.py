"""The best timed again in turns, on data prepared afresh, until it is decided who wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import problems, rows

from autotune.store.store import Store
from autotune.timing.measure import EFFORTS, Entrant, Race, Round
from autotune.tuning import search
from autotune.tuning import warmup as tuner
from autotune.tuning.progress import Progress
from autotune.tuning.search import profile
from autotune.tuning.warmup import warmup
from autotune.workload import Verdict
from bench.tuning import fake
from bench.tuning.fake import workload

pytestmark = pytest.mark.usefixtures("fake_clock")


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, str]]]:
    """What was bound to data since the test began: problem and candidate."""
    log = tmp_path / "log"
    monkeypatch.setattr(fake.Fake, "log", str(log))

    def read() -> list[tuple[str, str]]:
        lines = [line.split() for line in log.read_text().splitlines() if line.startswith("prepare")]
        return [(line[1], line[-1]) for line in lines]

    return read


def test_the_best_are_timed_again_on_fresh_data_until_it_is_decided(store: Store, prepared) -> None:
    profile(workload, problems("close")[0].key, store)
    times = Counter(name for _, name in prepared())
    assert (times["best"], times["a"], times["model"]) == (2, 2, 2)  # the others are clearly behind
    profile(workload, problems("tie")[0].key, store)
    times = Counter(name for problem, name in prepared() if problem.startswith("tie"))
    assert 1 + search.AGREED <= times["rival"] == times["model"] <= 1 + search.TURNS


def test_problems_take_turns_so_that_no_moment_decides(store: Store, prepared) -> None:
    warmup(workload, problems("tie:1", "tie:2"), store)
    order = [problem for problem, name in prepared() if name == "rival"]
    assert order[:6] == 3 * ["tie:2", "tie:1"]


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `tie` and `shared` stays open, whatever is found."""
    inner, is_open = search.Search.is_decided.fget, ("tie", "shared")
    monkeypatch.setattr(
        search.Search, "is_decided", property(lambda self: not self.key.startswith(is_open) and inner(self))
    )


@pytest.mark.usefixtures("undecided")
def test_what_problems_leave_of_their_time_goes_to_those_that_are_open(
    store: Store, prepared, fake_clock: fake.Clock
) -> None:
    begun = fake_clock.now
    states: list[Progress] = []
    ordered = problems("tie:1", "good:1", "good:2", "good:3")
    outcome = warmup(workload, ordered, store, progress=states.append)
    found = [problem for problem, name in prepared() if name in ("rival", "fast")]
    turns = found.count("tie:1") - 1
    assert search.AGREED + 3 <= turns <= search.AGREED + search.TURNS
    assert set(found[3 - turns :]) == {"tie:1"}
    assert fake_clock.now - begun <= len(ordered) * EFFORTS["quick"].seconds
    row = rows(store, ordered[0])["rival"]
    assert row.count == outcome.tuned[ordered[0].task].count > turns * search.TURN_ROUNDS
    *last, end = [state for state in states if state.done == len(ordered)]
    assert (end.fraction, end.left) == (1.0, 0.0)
    assert len(last) > turns - search.AGREED
    assert all(state.fraction < 1 and state.left > 0 for state in last)


@pytest.mark.usefixtures("undecided")
def test_the_shortest_of_those_come_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = search.Search.again
    turns: list[str] = []

    def again(self: search.Search, deadline: float | None = None) -> None:
        inner(self, deadline)
        turns.append(self.key.split()[0])
        self.cost = {"tie:1": 3.0, "tie:2": 1.0, "tie:3": 2.0, "good:1": 1.0}[turns[-1]] * 1e-3

    monkeypatch.setattr(search.Search, "again", again)
    warmup(workload, problems("tie:1", "tie:2", "tie:3", "good:1"), store)
    turns = [each for each in turns if each != "good:1"]
    first = 3 * search.AGREED
    assert turns[:3] == ["tie:3", "tie:2", "tie:1"]  # the most valuable first
    assert turns[first : first + 3] == ["tie:2", "tie:3", "tie:1"]


def test_how_long_a_sample_lasts_is_settled_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, settled = search.calibrate, []
    monkeypatch.setattr(search, "calibrate", lambda *about: settled.append(1) or inner(*about))
    profile(workload, problems("tie")[0].key, store)
    assert len(settled) == len(rows(store, problems("tie")[0]))


@pytest.mark.usefixtures("undecided")
def test_so_many_open_problems_are_not_kept_for_the_end(
    store: Store, prepared, fake_clock: fake.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "BATCH", 1)
    monkeypatch.setattr(tuner, "OPEN", 1)
    begun, ordered = fake_clock.now, problems("tie:1", "tie:2")
    warmup(workload, ordered, store)
    order = [problem for problem, name in prepared() if name == "rival"]
    assert order == sorted(order, reverse=True)  # the first has had all its turns when the next begins
    assert min(Counter(order).values()) > 1 + search.AGREED
    assert fake_clock.now - begun <= len(ordered) * EFFORTS["quick"].seconds


@pytest.mark.parametrize("threads", [1, 2])
def test_only_one_thread_moves_between_cores(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    inner = search.race

    def race(entrants: dict[str, Entrant], *, roam: bool, **more) -> Race:
        asked.append(roam)
        return inner(entrants, **more)

    monkeypatch.setattr(search, "race", race)
    (problem,) = problems("tie", count=threads)
    candidates, _ = workload.candidates(problem.key, "quick")
    tried = {each.name: Verdict("", 1e-7, 1e-5) for each in candidates}
    found = search.Search(workload, problem.key, candidates, tried, effort=EFFORTS["quick"])
    found.race()
    found.again()
    assert asked == 2 * [threads == 1]


@pytest.mark.usefixtures("undecided")
def test_numbers_of_threads_are_compared_when_that_has_ended(store: Store) -> None:
    shared = [each for count in (1, 2) for each in problems("shared", count=count)]
    warmup(workload, shared, store)
    for each in shared:
        assert rows(store, each)["model"].threads_fraction == pytest.approx(0.1, abs=0.03)


@pytest.mark.usefixtures("undecided")
def test_an_interrupt_of_that_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems("tie")
    inner, rounds = search.Search.again, []

    def again(self: search.Search, deadline: float | None = None) -> None:
        if len(self.turns) > search.AGREED:
            rounds.extend(race.rounds for race in self.heats + self.counted)
            raise KeyboardInterrupt
        inner(self, deadline)

    monkeypatch.setattr(search.Search, "again", again)
    with pytest.raises(KeyboardInterrupt):
        warmup(workload, [problem], store)
    assert set(rows(store, problem)) == {"model", "rival"}
    assert rows(store, problem)["rival"].count == sum(rounds)
    assert len(rounds) > 1 + search.AGREED
    assert warmup(workload, [problem], store).resumed == [problem.key]


def test_within_a_budget_problems_are_finished_one_by_one(store: Store, prepared) -> None:
    warmup(workload, problems("tie:1", "tie:2"), store, budget=60.0)
    order = [problem for problem, name in prepared() if name == "rival"]
    assert order == sorted(order, reverse=True)
    assert Counter(order)["tie:2"] >= 1 + search.AGREED


def test_who_fails_when_timed_again_is_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, times = fake.Fake.prepare, Counter()

    def prepare(self: fake.Fake, key: str, name: str, regime: str = "warm") -> fake.FakeTrial:
        times[name] += 1
        if name == "best" and times[name] == 2:
            raise MemoryError("no more")
        return inner(self, key, name, regime)

    monkeypatch.setattr(fake.Fake, "prepare", prepare)
    (problem,) = problems("close")
    assert profile(workload, problem.key, store).candidate != "best"
    found = rows(store, problem)["best"]
    assert (found.state, found.reason) == ("rejected", "run: MemoryError: no more")


def test_an_interrupt_keeps_what_is_known_of_those_that_are_not_decided(store: Store, monkeypatch) -> None:
    first, second = problems("tie:2", "good:1")
    inner, raced = search.Search.race, []

    def race(self: search.Search, deadline: float | None = None) -> None:
        if raced:
            raise KeyboardInterrupt
        raced.append(self.key)
        inner(self, deadline)

    monkeypatch.setattr(search.Search, "race", race)
    with pytest.raises(KeyboardInterrupt):
        warmup(workload, [first, second], store)
    assert raced == [first.key]
    assert set(rows(store, first)) == {"model", "rival"}
    monkeypatch.setattr(search.Search, "race", inner)
    assert set(warmup(workload, [first, second], store).tuned) == {first.key, second.key}


def test_a_lucky_place_in_memory_does_not_win(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, prepared = fake.Fake.prepare, Counter()

    def prepare(self: fake.Fake, key: str, name: str, regime: str = "warm") -> fake.FakeTrial:
        trial = inner(self, key, name, regime)
        prepared[name] += 1
        if name == "rival" and prepared[name] == 1:
            trial.seconds *= 0.9
        return trial

    monkeypatch.setattr(fake.Fake, "prepare", prepare)
    assert profile(workload, problems("tie")[0].key, store).candidate == "model"
    assert prepared["rival"] >= 1 + search.AGREED


def a_search(*heats: dict[str, float]) -> search.Search:
    """One of `tie`, after a race of such rounds."""
    (problem,) = problems("tie")
    candidates, _ = workload.candidates(problem.key, "quick")
    found = search.Search(workload, problem.key, candidates, {}, effort=EFFORTS["quick"])
    standing = sorted(heats[0], key=heats[0].__getitem__)
    found.rank(Race(standing, kept=[Round(heat) for heat in heats]))
    found.nominate()
    return found


def test_who_may_be_as_fast_is_timed_again() -> None:
    near, behind = {"model": 1e-4, "rival": 1.14e-4}, {"model": 1e-4, "rival": 1.2e-4}
    assert a_search(near, near, near).finalists == ["model", "rival"]
    assert a_search(behind, behind, behind).finalists == ["model"]
    faster, slower = ({name: share * seconds for name, seconds in behind.items()} for share in (0.9, 1.1))
    assert a_search(behind, faster, slower).finalists == ["model", "rival"]  # it tells less


def test_a_winner_that_is_not_proven_is_timed_again() -> None:
    found = a_search(*[{"model": 1.03e-4, "rival": 1e-4}] * 3)
    lost = Round({"rival": 1.1e-4, "model": 1.03e-4})
    won = Round({"rival": 1e-4, "model": 1.03e-4})
    found.turns = [Race(["rival", "model"], kept=[won, lost, won, lost, won, lost, won])] * 2
    assert not found.is_decided
    found.turns = [Race(["rival", "model"], kept=[won] * 7)] * 2
    assert found.is_decided
    level = Round({"rival": 1e-4, "model": 1.005e-4})
    found.turns = [Race(["rival", "model"], kept=[level] * 7)] * 2
    assert (found.is_proven("rival"), found.is_decided) == (False, True)  # nothing to gain


def test_who_is_found_far_behind_leaves(store: Store) -> None:
    (problem,) = problems("close")
    candidates, _ = workload.candidates(problem.key, "quick")
    tried = {each.name: Verdict("", 1e-7, 1e-5) for each in candidates}
    found = search.Search(workload, problem.key, candidates, tried, effort=EFFORTS["quick"])
    found.race()
    first, *others = found.finalists
    assert first == "best" and {"a", "model"} <= {*others}
    found.again()
    assert (found.finalists, found.beaten, found.is_decided) == (["best"], {*others}, True)


def test_one_moment_beats_nobody() -> None:
    found = a_search(*[{"model": 1e-4, "rival": 1e-4}] * 7)
    far = Race(["rival", "model"], kept=[Round({"rival": 1e-4, "model": 1.2e-4})] * 9)
    found.turns = [far]
    assert not found.is_far("model", "rival")
    found.turns = [far, far]
    assert found.is_far("model", "rival")
    found.turns = [far, Race(["rival", "model"], kept=[Round({"rival": 1e-4, "model": 1e-4})] * 16), far]
    assert not found.is_far("model", "rival")  # it was as fast as often


def test_nobody_ranks_before_the_leader_where_middles_go_round_in_a_circle() -> None:
    (problem,) = problems("close")
    candidates, _ = workload.candidates(problem.key, "quick")
    names = ["a", "b", "best"]
    found = search.Search(workload, problem.key, candidates, {}, effort=EFFORTS["quick"])
    found.rank(Race([*names, "model"], kept=[Round({"a": 1e-4, "b": 1e-4, "best": 1e-4, "model": 9e-4})] * 3))
    found.nominate()
    rounds = [
        Round(dict(zip(names, each, strict=True)))
        for each in ((1e-4, 1.1e-4, 1.21e-4), (1.21e-4, 1e-4, 1.1e-4), (1.1e-4, 1.21e-4, 1e-4))
    ]
    found.turns, found.finalists, found.beaten = [Race(names, kept=rounds)], names, {"model"}
    assert all(found.relative(one, other) < 1 for one, other in (("a", "b"), ("b", "best"), ("best", "a")))
    found.decide()
    assert min(found.findings.scores, key=found.findings.scores.__getitem__) == found.best


def test_who_left_as_known_to_be_behind_is_beaten() -> None:
    found = a_search(*[{"model": 1e-4, "rival": 1e-4}] * 7)
    found.turns = [Race(["rival", "model"], kept=[Round({"rival": 1e-4, "model": 1.01e-4})] * 2)]
    found.decide()
    assert found.findings.scores["rival"] > found.findings.scores["model"]  # two rounds prove nothing
    found.finalists = []  # as in a race that is interrupted
    found.decide()
    assert found.findings.scores["rival"] > found.findings.scores["model"]
    found.findings.times |= {"rival": 1e-4, "model": 1e-4}  # nor does a tie
    found.decide()
    assert found.findings.scores["rival"] > found.findings.scores["model"]
    found.finalists, found.beaten = ["rival"], {"model"}
    found.decide()
    assert found.findings.scores["rival"] < found.findings.scores["model"]


def test_rounds_at_the_machines_best_count_if_there_are_enough() -> None:
    found = a_search(*[{"model": 1e-4, "rival": 1e-4}] * 7)
    slow, fast = Round({"rival": 2e-4, "model": 1e-4}, full=False), Round({"rival": 1e-4, "model": 1.1e-4})
    found.turns = [Race(["rival", "model"], kept=[slow] * 8 + [fast] * 6)]
    assert found.best == "model"
    found.turns.append(Race(["rival", "model"], kept=[fast, slow, slow]))
    assert found.best == "rival"
    assert found.ratios("model", "rival") == pytest.approx([1.1] * 7)


def test_short_problems_are_open_until_they_are_timed_at_the_machines_best() -> None:
    found = a_search(*[{"model": 1e-4, "rival": 1e-4}] * 7)
    slow = Race(["rival", "model"], kept=[Round({"rival": 1e-4, "model": 1.2e-4}, full=False)] * 7)
    found.turns, found.cost = [slow] * 2, 5e-3
    assert (found.is_doubtful, found.is_decided) == (True, False)
    found.cost = 50e-3  # seven such rounds at its best are not to be had
    assert (found.is_doubtful, found.is_decided) == (False, True)
    fast = Race(["rival", "model"], kept=[Round({"rival": 1e-4, "model": 1.2e-4})] * 7)
    found.turns, found.cost = [slow, fast, fast], 5e-3
    assert (found.is_doubtful, found.is_decided) == (False, True)


def test_nobody_leaves_for_what_was_timed_below_the_machines_best(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems("close")
    candidates, _ = workload.candidates(problem.key, "quick")
    tried = {each.name: Verdict("", 1e-7, 1e-5) for each in candidates}
    found = search.Search(workload, problem.key, candidates, tried, effort=EFFORTS["quick"])
    found.race()
    inner = search.race

    def below_its_best(*args: object, **options: object) -> Race:
        result = inner(*args, **options)
        result.kept = [replace(each, full=False) for each in result.kept]
        return result

    with monkeypatch.context() as patch:
        patch.setattr(search, "race", below_its_best)
        found.again()
    assert (len(found.finalists) > 2, found.beaten) == (True, set())
    found.again()
    assert (found.finalists, found.is_decided) == (["best"], True)
