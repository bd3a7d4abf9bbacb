"""The race: fair in rounds, decided by pairs, quiet, and in time."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from clock import Clock, enter

from autotune.timing import measure, pace
from autotune.timing.measure import (
    Entrant,
    calibrate,
    is_faster,
    is_settled,
    median_and_spread,
    pseudomedian,
    race,
    sign_test,
)
from autotune.timing.pace import Pace


def test_the_fastest_of_close_candidates_wins(clock: Clock) -> None:
    entrants = enter(clock, noise=0.05, a=1.06e-4, best=1e-4, b=1.1e-4, c=1.04e-4, far=1.9e-4)
    result = race(entrants, rounds=40, seconds=100.0, rng=random.Random(0))
    assert result.winner == "best"
    assert result.relative("c") == pytest.approx(1.04, rel=0.02)
    assert result.relative("best") == 1.0


def test_who_wins_some_rounds_of_a_noisy_race_stays(clock: Clock) -> None:
    turns = iter(range(10**6))

    def unsteady() -> None:  # the better of the two, but in two rounds of the first three much slower
        clock.now += (0.03, 0.015, 0.03, 0.015)[next(turns) % 4]

    entrants = {"a": Entrant(clock.run("a", 0.02), 1, 1, 0.02), "b": Entrant(clock.run("b", 0.0201), 1, 1, 0.0201)}
    entrants["unsteady"] = Entrant(unsteady, 1, 1, 0.015)
    result = race(entrants, rounds=3, seconds=100.0, rng=random.Random(0))
    assert result.relative("unsteady") == pytest.approx(1.5)
    assert set(result.standing) == {"a", "b", "unsteady"}


def test_drift_cancels(clock: Clock) -> None:
    entrants = enter(clock, a=1.05e-4, b=1e-4, c=1.02e-4)
    inner = entrants["a"].run

    def slower_and_slower() -> None:
        clock.slowness *= 1.002
        inner()

    entrants["a"] = Entrant(slower_and_slower, 1, 1, 1.05e-4)
    result = race(entrants, rounds=9, seconds=100.0, rng=random.Random(0), drop=False)
    assert result.winner == "b"
    assert result.relative("c") == pytest.approx(1.02, abs=0.01)


def test_rounds_run_everybody_in_random_order(clock: Clock) -> None:
    entrants = {name: Entrant(clock.run(name, 0.02), 1, 1, 0.02) for name in "abc"}
    race(entrants, rounds=20, seconds=100.0, rng=random.Random(0), drop=False)
    rounds = ["".join(clock.order[at : at + 3]) for at in range(0, 60, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 3


def test_the_hopeless_leave_at_once_and_losers_soon(clock: Clock) -> None:
    entrants = {name: Entrant(clock.run(name, s), 1, 1, s) for name, s in dict(a=0.02, b=0.03, c=0.1).items()}
    result = race(entrants, rounds=20, seconds=100.0, rng=random.Random(0))
    assert [clock.order.count(name) for name in "abc"] == [measure.SETTLED, measure.JUDGED, 1]
    assert result.relative("c") == pytest.approx(5.0)
    assert result.standing == ["a"]


def test_one_bad_sample_is_not_hopeless(clock: Clock) -> None:
    waits = iter([0.1] + [0.0] * 100)
    inner = clock.run("hit", 0.018)

    def hit() -> None:
        clock.now += next(waits)
        inner()

    entrants = {"a": Entrant(clock.run("a", 0.02), 1, 1, 0.02), "hit": Entrant(hit, 1, 1, 0.018)}
    result = race(entrants, rounds=20, seconds=100.0, rng=random.Random(0))
    assert max(result.ratios("hit", "a")) > measure.HOPELESS
    assert result.winner == "hit"


def test_the_slower_half_leaves_but_for_the_close(clock: Clock) -> None:
    seconds = {"a": 0.02, "b": 0.0201, "c": 0.0202, "d": 0.024, "e": 0.0245, "f": 0.0246}
    entrants = {name: Entrant(clock.run(name, s, 0.01), 1, 1, s) for name, s in seconds.items()}
    result = race(entrants, rounds=3, seconds=100.0, rng=random.Random(0))
    assert set(result.standing) == {"a", "b", "c"}


def test_noise_keeps_who_may_be_close(clock: Clock) -> None:
    found = [0.026, 0.03, 0.022]  # always behind, by 1.3 in the median, but that may be off
    spread = iter(found)

    def noisy() -> None:
        clock.now += next(spread)

    entrants = {name: Entrant(clock.run(name, s), 1, 1, s) for name, s in dict(a=0.02, b=0.0201).items()}
    entrants["noisy"] = Entrant(noisy, 1, 1, 0.026)
    result = race(entrants, rounds=3, seconds=100.0, rng=random.Random(0))
    assert result.lost("noisy", "a") == 1.0
    assert "noisy" in result.standing


def test_the_race_ends_in_time(clock: Clock) -> None:
    entrants = {name: Entrant(clock.run(name, 0.1), 1, 1, 0.1) for name in "ab"}
    begun = clock.now
    result = race(entrants, rounds=100, seconds=1.05, rng=random.Random(0))
    assert result.rounds == 5
    assert clock.now - begun <= 1.05
    result = race(entrants, rounds=100, seconds=0.01, rng=random.Random(0), least=3)
    assert result.rounds == 3
    result = race(entrants, rounds=100, seconds=0.0, rng=random.Random(0), least=0)
    assert (result.rounds, result.samples) == (0, {"a": [0.1], "b": [0.1]})


def test_no_collection_while_timing() -> None:
    seen: list[bool] = []
    race({"a": Entrant(lambda: seen.append(gc.isenabled()), 1, 1, 1e-6)}, rounds=3, seconds=1.0, rng=random.Random(0))
    assert seen and not any(seen)
    assert gc.isenabled()


def test_comparison_of_pairs() -> None:
    assert is_faster([1.1, 1.09, 1.05])
    assert not is_faster([2.0, 2.0])
    assert not is_faster([1.005, 1.005, 1.005])
    assert not is_faster([1.2, 0.92, 1.2, 0.92])
    assert not is_faster([1.001, 1.2, 1.01, 1.05, 1.25, 0.9, 0.95, 1.15])  # by 6%, which may be noise
    assert is_faster([1.02, 1.03, 1.04] * 5)
    assert not is_faster([1.0, 1.01, 1.02] * 5)  # by too little


def test_the_middle_of_ratios_is_near_and_no_outlier_moves_it() -> None:
    assert pseudomedian([2.0]) == 2.0
    assert pseudomedian([1.0, 2.0, 6.0]) == pytest.approx(2.75)  # of 1, 1.5, 2, 3.5, 4, 6
    rng = random.Random(5)
    drawn = [[rng.gauss(1.0, 0.03) for _ in range(15)] for _ in range(400)]
    off = [statistics.fmean(abs(middle(each) - 1.0) for each in drawn) for middle in (pseudomedian, statistics.median)]
    assert off[0] < 0.9 * off[1]
    far = [pseudomedian([*each[:12], 9.0, 9.0, 9.0]) for each in drawn]
    assert max(far) < 1.06


def test_data_move_before_each_sample(clock: Clock) -> None:
    moves: list[str] = []
    entrants = {
        name: calibrate(clock.run(name, 1e-3), move=lambda name=name: moves.append(name)) for name in ("a", "b")
    }
    assert sorted(moves) == ["a", "b"]  # a place of their own to be settled in, as trials share theirs
    moves.clear()
    result = race(entrants, rounds=4, seconds=1.0, rng=random.Random(0), drop=False)
    assert result.rounds == 4
    assert sorted(moves) == ["a"] * 4 + ["b"] * 4


def test_sign_test() -> None:
    assert sign_test(5, 5) == 1 / 32
    assert sign_test(0, 7) == 1.0
    assert sign_test(3, 4) == 5 / 16


def test_median_and_spread() -> None:
    assert median_and_spread([3.0, 1.0, 2.0, 10.0, 2.5]) == (2.5, 0.5)


def test_real_time_agrees() -> None:
    def busy() -> None:
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:
            pass

    entrant = calibrate(busy)
    result = race({"busy": entrant}, rounds=5, seconds=1.0, rng=random.Random(0))
    assert result.rounds >= 1
    assert min(result.samples["busy"]) >= 2e-4


def noisy(clock: Clock, period: float) -> tuple[dict[str, Entrant], Callable[[], None]]:
    """Two candidates and a reference on a machine that is at full speed and at half of it for so many seconds each."""

    def machine(seconds: float) -> Callable[[], None]:
        def run() -> None:
            clock.now += seconds * (1 + clock.now // period % 2)

        return run

    return {name: Entrant(machine(each), 1, 1, each) for name, each in dict(a=0.0202, b=0.02).items()}, machine(5e-5)


def test_rounds_in_which_the_machine_changes_do_not_count(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "AT_ONCE", 0.0)  # nothing is waited for
    monkeypatch.setattr(pace, "PATIENCE", 0.0)
    entrants, reference = noisy(clock, period=0.5)
    result = race(entrants, rounds=12, seconds=100.0, rng=random.Random(0), drop=False, reference=reference)
    assert (result.rounds, result.winner) == (12, "b")
    assert result.thrown and all(each.moved > measure.MOVED for each in result.thrown)
    assert result.ratios("a", "b") == pytest.approx([1.01] * 12)
    clock.now = 0.0
    entrants, _ = noisy(clock, period=0.5)
    blind = race(entrants, rounds=50, seconds=100.0, rng=random.Random(0), drop=False)
    assert max(blind.ratios("a", "b")) > 1.5 or min(blind.ratios("a", "b")) < 0.7


def test_waiting_leaves_a_race_rounds_that_tell(clock: Clock) -> None:
    def reference() -> None:  # the machine never is at its best again
        clock.now += 5e-5 * (1.0 if clock.now < 0.5 else 1.2)

    Pace(reference)
    clock.now = 1.0
    entrants = {name: Entrant(clock.run(name, 0.02), 1, 1, 0.02) for name in "abcde"}
    result = race(entrants, rounds=20, seconds=0.1, rng=random.Random(0), reference=reference, patience=0.9)
    assert result.rounds >= measure.JUDGED


def test_a_machine_that_never_rests_is_timed_all_the_same(clock: Clock) -> None:
    entrants, _ = noisy(clock, period=0.02)
    drift = iter(range(1, 10_000))

    def reference() -> None:
        clock.now += 5e-5 * (2 + next(drift) // 2 % 2)  # never twice the same, before and after

    result = race(entrants, rounds=10, seconds=100.0, rng=random.Random(0), drop=False, reference=reference)
    assert result.rounds == 10
    assert len(result.thrown) <= 10 + measure.SPARE
    # Out of time before any round was quiet: the least disturbed ones count.
    result = race(entrants, rounds=10, seconds=0.2, rng=random.Random(0), drop=False, reference=reference)
    assert 1 <= result.rounds <= measure.JUDGED


def test_the_same_need_no_more_rounds(clock: Clock) -> None:
    entrants = {name: Entrant(clock.run(name, 0.02, 0.005), 1, 1, 0.02) for name in "ab"}
    result = race(entrants, rounds=60, seconds=100.0, rng=random.Random(0))
    assert measure.SETTLED <= result.rounds < 12
    assert sorted(result.standing) == ["a", "b"]


def test_nobody_is_timed_to_gain_a_hundredth(clock: Clock) -> None:
    entrants = {
        name: Entrant(clock.run(name, 0.02, 0.015), 1, 1, 0.02, bound) for name, bound in (("a", 0.0), ("b", 0.0))
    }
    assert race(entrants, rounds=12, seconds=100.0, rng=random.Random(0)).standing != ["a"]
    entrants = {name: replace(entrant, bound=0.02) for name, entrant in entrants.items()}
    clock.order.clear()
    result = race(entrants, rounds=12, seconds=100.0, rng=random.Random(0))
    assert len(result.standing) == 1
    assert len(clock.order) == measure.SETTLED + measure.JUDGED


def test_the_first_run_is_in_no_sample(clock: Clock) -> None:
    compiled = False

    def run() -> None:
        nonlocal compiled
        clock.now += 2e-3 if compiled else 5.0
        compiled = True

    result = race({"a": calibrate(run)}, rounds=5, seconds=1.0, rng=random.Random(0))
    assert result.samples["a"] == pytest.approx([2e-3] * 5)


def test_intervals_hold_the_median() -> None:
    assert measure.interval([1.0, 2.0, 3.0, 4.0, 5.0]) == (-math.inf, math.inf)
    assert measure.interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)
    rng = random.Random(3)
    held = 0
    for _ in range(400):
        low, high = measure.interval([rng.lognormvariate(0, 1) for _ in range(15)])
        held += low <= 1.0 <= high
    assert held / 400 >= measure.CONFIDENCE - 0.03


def test_what_another_program_does_is_in_no_sample(clock: Clock) -> None:
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        clock.now += 1e-3 + 8e-3 * (runs % 2)  # another program's turn

    result = race({"a": Entrant(run, 6, 1, 1e-3)}, rounds=6, seconds=1.0, rng=random.Random(0))
    assert result.samples["a"] == pytest.approx([1e-3] * 6)


def test_who_left_early_is_not_ranked_before_the_winner() -> None:
    together, alone = measure.Round({"early": 1.0, "best": 1.1}), measure.Round({"best": 0.8})
    result = measure.Race(["best"], kept=[together] * 3 + [alone] * 9)
    assert statistics.median(result.ratios("early", "best")) < 1.0
    assert result.relative("early") > 1.0
    assert result.relative("best") == 1.0


def test_samples_below_the_best_are_taken_again(clock: Clock) -> None:
    times = {"a": (0.020, 0.030), "b": (0.021, 0.024)}  # at full speed, and where another program shares the caches

    def slow() -> bool:
        return clock.now // 0.3 % 2 == 1

    def entrant(name: str) -> Entrant:
        def run() -> None:
            clock.now += times[name][slow()]

        return Entrant(run, 1, 1, times[name][0])

    def reference() -> None:
        clock.now += 5e-5 * (1.2 if slow() else 1.0)

    entrants = {name: entrant(name) for name in times}
    result = race(entrants, rounds=20, seconds=100.0, rng=random.Random(0), drop=False, reference=reference)
    assert (result.rounds, result.winner, result.thrown) == (20, "a", [])
    assert result.ratios("a", "b") == pytest.approx([0.020 / 0.021] * 20)
    blind = race(entrants, rounds=20, seconds=100.0, rng=random.Random(0), drop=False)
    assert max(blind.ratios("a", "b")) == pytest.approx(1.25)


def test_more_rounds_are_not_needed_once_nothing_is_to_be_gained() -> None:
    def settled(*ratios: float) -> bool:
        return is_settled(measure.Race(["a", "b"], kept=[measure.Round({"a": 1.0, "b": ratio}) for ratio in ratios]))

    assert settled(*[1.05, 1.04, 1.06] * 3)
    assert settled(*[1.0, 1.005, 0.995] * 3)
    assert settled(*[1.05, 0.99, 1.0] * 3)
    assert not settled(*[1.05, 0.97, 1.0] * 3)
    assert not settled(1.05, 1.04, 1.06)


@pytest.mark.parametrize("good", [0.02, 0.005])
@pytest.mark.parametrize("patience", [0.0, 0.5])
def test_a_race_takes_longer_only_for_the_machines_best(clock: Clock, good: float, patience: float) -> None:
    """Which is had for `good` of each tenth of a second; what is rarer than one moment in ten is luck."""

    def slow() -> bool:
        return clock.now % 0.1 > good

    def run() -> None:
        clock.now += 2e-3 * (1.3 if slow() else 1.0)

    def reference() -> None:
        clock.now += 5e-5 * (1.2 if slow() else 1.0)

    pace = Pace(reference)
    while clock.now < 30.0:  # what share it has is known
        clock.now += 1e-3
        pace.look()
    begun = clock.now
    result = race(
        {name: Entrant(run, 2, 1, 2e-3) for name in "ab"},
        rounds=1000,
        seconds=0.3,
        rng=random.Random(0),
        drop=False,
        reference=reference,
        patience=patience,
    )
    spent = clock.now - begun
    if good == 0.02 and patience:
        assert 0.3 < spent < 0.3 + patience
        assert result.full == measure.SETTLED
    else:
        assert spent < 0.31
        assert (result.full < measure.SETTLED) == (good == 0.02)


@pytest.mark.parametrize(("slow", "is_kept"), [(1.05, True), (1.2, False)])
def test_what_the_speed_changes_by_all_the_time_throws_no_round_away(clock: Clock, slow: float, is_kept: bool) -> None:
    def slowness() -> float:  # 5 ms of one, 5 of the other
        return slow if clock.now // 0.005 % 2 else 1.0

    def reference() -> None:
        clock.now += 5e-5 * slowness()

    def run() -> None:
        clock.now += 3e-3 * slowness()

    look = Pace(reference)
    while clock.now < 2.0:
        clock.now += 1e-3
        look.look()
    entrants = {name: Entrant(run, 1, 1, 3e-3) for name in "ab"}
    result = race(entrants, rounds=12, seconds=0.2, rng=random.Random(0), drop=False, reference=reference)
    assert result.rounds > measure.SETTLED
    assert not result.thrown
    assert look.drift == (pace.NEAR if is_kept else 0.0)
    assert (max(each.moved for each in result.kept) > measure.MOVED) == is_kept  # what is far below is waited out
