"""The machine's pace: its best is learnt and fades, waiting is paid for and ends."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from clock import Clock

from autotune.timing import pace
from autotune.timing.pace import Pace, Wake


def machine(clock: Clock, slow: Callable[[float], float]) -> Callable[[], None]:
    """A reference of 50 µs on a machine that is `slow(now)` times slower."""

    def reference() -> None:
        clock.now += 5e-5 * slow(clock.now)

    return reference


def test_without_a_reference_everything_counts(clock: Clock) -> None:
    at = Pace(None)
    at.begin_round()
    at.wait()
    assert at.counts(1.0, Wake([0, 0]))
    assert (clock.now, at.lost, at.moved) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("fast", "lost"), [(0.03, 0.2), (0.005, 0.0)])
def test_the_best_is_what_can_be_had_now_and_then(clock: Clock, fast: float, lost: float) -> None:
    at = Pace(machine(clock, lambda now: 1.0 if 0.06 < now < 0.06 + fast else 1.2))  # the first looks take 0.12 s
    assert at.lost == pytest.approx(lost, abs=0.003)
    assert at.share == pytest.approx(1.0 if lost == 0.0 else fast / 0.12, abs=0.05)


def test_a_rare_moment_is_faster_than_the_best(clock: Clock) -> None:
    at = Pace(machine(clock, lambda now: 1.0 if now < 1.0 else 0.9))
    clock.now = 1.0
    at.look()
    assert at.lost == pytest.approx(-0.1, abs=0.003)
    assert at.counts(1e-3, Wake([0, 0]))
    assert at.full


def test_the_best_is_that_of_all_races_and_forgotten(clock: Clock) -> None:
    reference = machine(clock, lambda now: 1.0 if now < 1.0 else 1.1)
    assert Pace(reference).lost == pytest.approx(0.0, abs=0.002)
    clock.now = 2.0
    assert Pace(reference).lost == pytest.approx(0.1, abs=0.003)
    share(reference, seconds=0.1 * pace.MEMORY)
    assert Pace(reference).lost == pytest.approx(0.1, abs=0.003)
    share(reference, seconds=0.4 * pace.MEMORY)
    assert Pace(reference).lost == pytest.approx(0.0, abs=0.002)


@pytest.mark.parametrize("slow", [0.1, 10.0])
def test_times_beyond_the_histogram_are_at_its_ends(clock: Clock, slow: float) -> None:
    reference = machine(clock, lambda now: 1.0 if now < 1.0 else slow)
    Pace(reference)
    clock.now = 2.0
    assert (Pace(reference).lost > 1.0) == (slow > 1)


def test_waiting_ends_when_the_machine_is_at_its_best(clock: Clock) -> None:
    reference = machine(clock, lambda now: 1.0 if now < 1.0 or now > 2.03 else 1.2)
    Pace(reference)
    clock.now = 2.0
    at = Pace(reference)
    assert at.lost > pace.BELOW
    at.wait()
    assert at.lost <= pace.BELOW
    assert 2.03 < clock.now < 2.03 + 3 * pace.PAUSE
    assert at.counts(1e-3, Wake([0, 0]))


@pytest.mark.parametrize("samples", [0.0, 0.1])
def test_waiting_is_paid_for_by_samples(clock: Clock, samples: float) -> None:
    slow = 2.0
    reference = machine(clock, lambda now: 1.0 if now < slow else 1.2)
    at = Pace(reference)
    assert at.counts(samples, Wake([0, 0]))
    clock.now = slow
    at.look()
    at.wait()
    assert clock.now - slow == pytest.approx(pace.AT_ONCE + pace.PATIENCE * samples, abs=2 * pace.PAUSE)
    begun = clock.now
    assert at.counts(1e-3, Wake([0, 0]))  # out of patience
    at.wait()
    assert clock.now - begun == pytest.approx(pace.PATIENCE * 1e-3, abs=2 * pace.PAUSE)


def test_nobody_waits_where_the_machine_is_seldom_at_its_best(clock: Clock) -> None:
    reference = machine(clock, lambda now: 1.0 if now < 1.0 or now % 0.1 < 0.015 else 1.2)
    Pace(reference)
    clock.now = 1.0
    assert share(reference, seconds=1.0) > 0.5  # it was trusted to be common
    assert 0.1 < share(reference, seconds=20.0) < 0.25
    at = Pace(reference)
    while at.lost <= pace.BELOW:
        clock.now += 1e-3
        at.look()
    begun = clock.now
    at.begin_round(share=0.3)
    at.wait()
    assert clock.now == begun
    assert at.counts(1e-3, Wake([0, 0]))
    at.begin_round(share=0.1)
    at.wait()
    assert begun < clock.now < begun + 0.1
    assert at.share == pace._histories[reference].share
    assert Pace(None).share == 0.0


@pytest.mark.parametrize("roam", [False, True])
def test_another_core_may_be_at_its_best(clock: Clock, monkeypatch: pytest.MonkeyPatch, roam: bool) -> None:
    moves: list[int] = []
    monkeypatch.setattr(pace, "move_thread", moves.append)
    reference = machine(clock, lambda now: 1.0 if now < 1.0 or len(moves) == 3 else 1.2)
    Pace(reference)
    clock.now = 2.0
    at = Pace(reference, roam=roam)
    at.wait()
    assert moves == ([1, 2, 3] if roam else [])
    assert (at.lost <= pace.BELOW) == roam


def share(reference: Callable[[], None], seconds: float) -> float:
    """What is thought to be the share of moments at full speed after looking for so long."""
    at, history = Pace(reference), pace._histories[reference]
    for _ in range(round(seconds / 5e-3)):
        time.sleep(5e-3)
        at.look()
    return history.share


def test_nothing_is_waited_for_past_the_deadline(clock: Clock) -> None:
    reference = machine(clock, lambda now: 1.0 if now < 1.0 else 1.2)
    Pace(reference)
    clock.now = 2.0
    at = Pace(reference)
    at.begin_round(until=2.01)
    at.wait()
    assert clock.now == pytest.approx(2.01, abs=2 * pace.PAUSE)
    assert at.counts(1e-3, Wake([0, 0]))


def test_what_ran_as_the_speed_fell_does_not_count(clock: Clock) -> None:
    falls = 1.0
    reference = machine(clock, lambda now: 1.0 if now < falls else 1.2)
    at = Pace(reference)
    at.begin_round()
    clock.now = falls
    assert not at.counts(1e-3, Wake([0, 0]))
    assert at.moved == 0.0


def test_a_round_moved_if_the_speed_changed_and_came_back(clock: Clock) -> None:
    slow = range(0)
    reference = machine(clock, lambda now: 1.2 if round(now) in slow else 1.0)
    at = Pace(reference)
    at.begin_round(until=0.0)  # everything counts
    slow = range(100, 102)
    for now in (99, 101, 103):
        clock.now = now
        assert at.counts(1e-3, Wake([0, 0]))
    assert (at.lost, at.full) == (pytest.approx(0.0, abs=0.01), False)
    assert at.moved == pytest.approx(0.2, abs=0.01)
    at.begin_round(until=0.0)
    assert at.moved == 0.0


def test_work_that_slows_the_reference_by_itself_is_no_loss(clock: Clock) -> None:
    """A fifth of its speed for 2 ms, as wide multiplications do; then other programs take a tenth more."""
    until = 0.0

    def slow(now: float) -> float:
        return (1.2 if now < until else 1.0) * (1.1 if now > 10.0 else 1.0)

    reference, wake = machine(clock, slow), Wake()
    at = Pace(reference)
    for now in (2.0, 4.0, 6.0, 12.0):
        clock.now = now
        until = now + 2e-3
        at.begin_round(until=0.0)  # everything counts
        assert at.counts(1e-3, wake)
        assert at.lost == pytest.approx(0.1 if now > 10.0 else 0.0, abs=0.003)


@pytest.mark.parametrize(("slow", "below"), [(1.06, pace.NEAR), (1.2, pace.BELOW)])
def test_speeds_that_are_close_are_all_its_best(clock: Clock, slow: float, below: float) -> None:
    """Where they take turns of 10 ms; but not one that is far below."""
    reference = machine(clock, lambda now: slow if now // 0.01 % 2 else 1.0)
    share(reference, seconds=1.0)
    assert pace._histories[reference].below == pytest.approx(below, abs=0.003)
    assert pace._histories[reference].share == pytest.approx(1.0 if slow < 1.1 else 0.5, abs=0.1)
    at = Pace(reference)
    begun, clock.now = 10.015, 10.015
    at.look()
    at.wait()
    assert (clock.now - begun > 1e-3) == (slow > 1.1)


def test_a_lucky_look_is_no_measure_of_the_others(clock: Clock) -> None:
    wake = Wake()
    at = Pace(machine(clock, lambda now: 0.8 if 1.0 < now < 1.01 else 1.0))
    for now in (0.5, 1.0, 1.5, 2.0):
        clock.now = now
        at.counts(1e-3, wake)
    assert min(wake.seen) < -50
    assert at.lost == pytest.approx(0.0, abs=0.003)
