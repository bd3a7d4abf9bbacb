"""Samples: long enough, of several parts, warm, and taken again where others disturb them."""

from __future__ import annotations

import pytest
from clock import Clock, enter

from autotune import measure
from autotune.measure import Entrant, calibrate
from autotune.pace import Pace


def test_calibration_makes_samples_long_enough(clock: Clock) -> None:
    short, long = calibrate(clock.run("short", 1e-6)), calibrate(clock.run("long", 0.1))
    assert short.seconds == pytest.approx(1e-6, rel=0.01)
    few, many = measure.PARTS
    assert few <= short.parts <= many
    assert measure.SAMPLE_SECONDS <= short.cost <= 2 * measure.SAMPLE_SECONDS
    assert (long.parts, long.loops, long.seconds) == (1, 1, pytest.approx(0.1))


@pytest.mark.parametrize("seconds, parts", [(4e-5, 13), (1.6e-4, 7), (1e-3, 4), (2e-3, 2), (4e-3, 1), (1e-2, 1)])
def test_a_sample_has_parts_unless_it_takes_long(clock: Clock, seconds: float, parts: int) -> None:
    assert calibrate(clock.run("run", seconds)).parts == parts


def test_a_sample_is_the_lower_quartile_of_its_parts(clock: Clock) -> None:
    turns = iter([0.0, 9.0, 1.0, 5.0, 2.0, 3.0, 3.0])

    def run() -> None:  # the first run is not timed
        clock.now += 1e-3 * next(turns)

    assert Entrant(run, 6, 1, 5e-4).sample(Pace(None)) == pytest.approx(2e-3)


def test_a_short_run_is_warmed_and_a_long_one_is_not(clock: Clock) -> None:
    entrants = enter(clock, short=1e-4, long=0.1)
    clock.order.clear()
    entrants["short"].sample(Pace(None))
    assert len(clock.order) == entrants["short"].parts * entrants["short"].loops + 1
    clock.order.clear()
    entrants["long"].sample(Pace(None))
    assert len(clock.order) == 1


def test_data_that_take_several_runs_to_settle_in_a_cache_are_waited_for(clock: Clock) -> None:
    cold = 0
    ran: list[float] = []

    def run() -> None:  # twice as long at first, then less and less, as others' data leave the cache
        nonlocal cold
        ran.append(1e-3 * (1 + 0.5**cold))
        clock.now += ran[-1]
        cold += 1

    entrant = Entrant(run, 4, 1, 1e-3)
    assert entrant.sample(Pace(None)) == pytest.approx(1e-3, rel=measure.FALLING)
    assert len(ran) < 4 * measure.RETAKEN
    warm = len(ran)
    entrant.sample(Pace(None))
    assert len(ran) == warm + 1 + 4  # no longer than ever where nothing falls


def test_a_sample_that_others_disturbed_is_taken_again(clock: Clock) -> None:
    """By what the reference does not see."""
    disturbed = [False, False, True, True, False] + [True] * 100
    samples = 0

    def run() -> None:
        clock.now += 2e-2 if disturbed[samples] else 1e-2

    def reference() -> None:
        clock.now += 5e-5

    entrant = Entrant(run, 1, 1, 1e-2)
    at = Pace(reference)
    at.begin_round()
    inner = entrant._sample

    def counting(pace: Pace) -> float:
        nonlocal samples
        found = inner(pace)
        samples += 1
        return found

    object.__setattr__(entrant, "_sample", counting)
    assert [entrant.sample(at) for _ in range(3)] == pytest.approx([1e-2] * 3)
    assert samples == 5
    assert entrant.sample(at) == pytest.approx(2e-2)  # it stays so: that counts
    assert samples == 5 + measure.TRIES
