"""Rounds: everybody in random order, quiet and in time; the faster half counts."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable

import pytest

from autotune.timing.rounds import COUNTED, Round, Rounds, run_rounds
from autotune.timing.sample import Entrant, calibrate
from support.tuner.clock import Clock, enter


def entrants(clock: Clock, **seconds: float) -> dict[str, Entrant]:
    """Of one run a sample."""
    return {name: Entrant(clock.run(name, each), 1, 1, each) for name, each in seconds.items()}


def taken(contenders: dict[str, Entrant], **options) -> Rounds:
    rounds = Rounds()
    run_rounds(rounds, contenders, rng=random.Random(0), **options)
    return rounds


def test_the_fastest_of_close_candidates_is_found(clock: Clock) -> None:
    rounds = taken(enter(clock, noise=0.05, a=1.06e-4, best=1e-4, b=1.1e-4, c=1.04e-4))
    assert rounds.fastest(["a", "b", "best", "c"]) == "best"
    assert rounds.compare("c", "best").centre == pytest.approx(1.04, rel=0.02)
    assert rounds.compare("best", "best") == (1.0, 1.0, 1.0)


def test_drift_cancels(clock: Clock) -> None:
    contenders = entrants(clock, a=1.05e-4, b=1e-4, c=1.02e-4)
    inner = contenders["a"].run

    def slower_and_slower() -> None:
        clock.slowness *= 1.002
        inner()

    contenders["a"] = Entrant(slower_and_slower, 1, 1, 1.05e-4)
    rounds = taken(contenders, most=9)
    assert rounds.fastest(["a", "b", "c"]) == "b"
    assert rounds.compare("c", "b").centre == pytest.approx(1.02, abs=0.01)


def test_rounds_run_everybody_in_random_order(clock: Clock) -> None:
    taken(entrants(clock, a=0.02, b=0.02, c=0.02), most=20)
    rounds = ["".join(clock.order[at : at + 3]) for at in range(0, 60, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 3


def test_who_is_judged_out_runs_no_more(clock: Clock) -> None:
    asked: list[list[str]] = []

    def select(remaining: list[str]) -> list[str]:
        asked.append(remaining)
        return remaining[:-1]

    rounds = taken(entrants(clock, a=0.02, b=0.02, c=0.02), least=2, select=select)
    assert asked == [["a", "b", "c"], ["a", "b"], ["a"]]
    assert [len(rounds.samples(name)) for name in "abc"] == [4, 3, 2]


def test_rounds_end_in_time(clock: Clock) -> None:
    begun = clock.now
    assert len(taken(entrants(clock, a=0.1, b=0.1), seconds=1.05).all) == 5
    assert clock.now - begun <= 1.05
    assert len(taken(entrants(clock, a=0.1, b=0.1), seconds=0.01, least=2).all) == 2


def test_no_collection_while_timing() -> None:
    seen: list[bool] = []
    taken({"a": Entrant(lambda: seen.append(gc.isenabled()), 1, 1, 1e-6)}, most=3)
    assert seen and not any(seen)
    assert gc.isenabled()


def test_data_move_before_each_sample(clock: Clock) -> None:
    moves: list[str] = []
    contenders = {name: calibrate(clock.run(name, 1e-3), lambda name=name: moves.append(name)) for name in ("a", "b")}
    assert sorted(moves) == ["a", "b"]  # a place of their own to be settled in, as trials share theirs
    moves.clear()
    taken(contenders, most=4)
    assert sorted(moves) == ["a"] * 4 + ["b"] * 4


def test_real_time_agrees() -> None:
    def busy() -> None:
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:
            pass

    assert min(taken({"busy": calibrate(busy)}, most=5).samples("busy")) >= 2e-4


def test_the_first_run_is_in_no_sample(clock: Clock) -> None:
    compiled = False

    def run() -> None:
        nonlocal compiled
        clock.now += 2e-3 if compiled else 5.0
        compiled = True

    assert taken({"a": calibrate(run)}, most=5).samples("a") == pytest.approx([2e-3] * 5)


def test_rounds_in_the_faster_half_count_if_they_are_enough() -> None:
    fast, slow = ({"a": 1.0, "b": 2.0}, 1e-5), ({"a": 3.0, "b": 1.0}, 2e-5)
    few = Rounds([Round(1, *each) for each in (COUNTED - 1) * [fast] + (COUNTED - 1) * [slow]])
    assert len(few.of("a", "b")) == 2 * (COUNTED - 1)
    enough = Rounds([Round(1, *each) for each in COUNTED * [slow] + COUNTED * [fast]])
    assert enough.compare("b", "a").centre == pytest.approx(2.0)
    assert enough.median("a") == 1.0
    assert len(enough.samples("a")) == 2 * COUNTED  # what is stored is of all
    blind = Rounds([Round(1, seconds) for seconds, _ in COUNTED * [slow] + COUNTED * [fast]])
    assert len(blind.of("a", "b")) == 2 * COUNTED


def test_those_are_counted_of_the_rounds_that_both_ran_in() -> None:
    alone = [Round(1, {"a": 1.0}, 1e-5)] * 20
    together = [Round(2, {"a": 1.0, "b": 1.5}, 2e-5)] * 5
    rounds = Rounds(alone + together)
    assert len(rounds.of("a", "b")) == 5
    assert rounds.compare("b", "a").centre == pytest.approx(1.5)
    assert [ratio.centre for ratio in rounds.by_visit("b", "a")] == pytest.approx([1.5])
    assert rounds.compare("a", "c").low == 0.0  # they never met


def test_the_probe_tells_at_which_speed_a_round_was(clock: Clock) -> None:
    """Two that change places at half the speed, which the machine has for every other second."""

    def machine(fast: float, slow: float) -> Callable[[], None]:
        def run() -> None:
            clock.now += slow if clock.now % 2 >= 1 else fast

        return run

    contenders = {"a": Entrant(machine(0.02, 0.05), 1, 1, 0.02), "b": Entrant(machine(0.03, 0.04), 1, 1, 0.03)}
    rounds = taken(contenders, most=200, probe=machine(5e-5, 1e-4))
    assert rounds.compare("b", "a").centre == pytest.approx(1.5)
    assert taken(contenders, most=200).compare("b", "a").centre < 1.2  # of both speeds
