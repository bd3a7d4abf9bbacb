"""Samples: long enough, of several parts, on data and a stack that moved."""

from __future__ import annotations

import statistics
import sys

import pytest

from autotune.timing import sample, stack
from autotune.timing.sample import Entrant, calibrate, median_and_spread
from support.tuner.clock import Clock


def test_calibration_makes_samples_long_enough(clock: Clock) -> None:
    short, long = calibrate(clock.run("short", 1e-6)), calibrate(clock.run("long", 0.1))
    assert short.seconds == pytest.approx(1e-6, rel=0.01)
    assert short.parts == sample.PARTS
    assert 1 <= short.loops * short.seconds / sample.PART_SECONDS <= 1.2
    assert (long.parts, long.loops, long.seconds) == (1, 1, pytest.approx(0.1))


@pytest.mark.parametrize("seconds, parts", [(6e-5, 9), (1.3e-3, 9), (2e-3, 6), (4e-3, 3), (1e-2, 1), (1.0, 1)])
def test_a_sample_has_parts_unless_it_takes_long(clock: Clock, seconds: float, parts: int) -> None:
    entrant = calibrate(clock.run("run", seconds))
    assert (entrant.parts, entrant.loops) == (parts, 1)
    clock.order.clear()
    entrant.sample()
    assert len(clock.order) == parts


def test_a_sample_is_the_least_of_its_parts(clock: Clock) -> None:
    turns = iter([9.0, 3.0, 2.0, 5.0, 2.5, 3.0])

    def run() -> None:
        clock.now += 1e-3 * next(turns)

    assert Entrant(run, 6, 1, 5e-4).sample() == pytest.approx(2e-3)


def test_data_that_take_several_runs_to_settle_in_a_cache_have_them(clock: Clock) -> None:
    cold = 0

    def run() -> None:  # twice as long at first, then less and less, as others' data leave the cache
        nonlocal cold
        clock.now += 1e-3 * (1 + 0.5**cold)
        cold += 1

    def move() -> None:
        nonlocal cold
        cold = 0

    entrant = calibrate(run, move=move)
    assert [entrant.sample() for _ in range(3)] == pytest.approx([1e-3] * 3, rel=0.01)


def test_the_stack_is_elsewhere_each_time(clock: Clock) -> None:
    depths: list[int] = []

    def run() -> None:
        clock.now += 1e-3
        frame, depth = sys._getframe(), 0
        while frame := frame.f_back:
            depth += 1
        depths.append(depth)

    entrant = Entrant(run, 3, 1, 1e-3)
    assert [entrant.sample() for _ in range(200)] == pytest.approx([1e-3] * 200)
    assert len({*depths}) == stack.DEPTH
    assert all(len({*depths[at : at + 3]}) == 1 for at in range(0, 600, 3))  # of a sample's parts it is one
    with pytest.raises(ZeroDivisionError):
        stack.with_random_stack_offset(lambda: 1 // 0)


def test_what_another_program_does_is_in_no_sample(clock: Clock) -> None:
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        clock.now += 1e-3 + 8e-3 * (runs % 2)  # another program's turn

    assert Entrant(run, 6, 1, 1e-3).sample() == pytest.approx(1e-3)


def test_a_sample_with_cold_weights_is_the_median(clock: Clock) -> None:
    turns = iter([3.0, 1.0, 3.0, 3.0, 2.0])  # one's weights happened to be cached

    def run() -> None:
        clock.now += 1e-3 * next(turns)

    assert Entrant(run, 5, 1, 3e-3, summary=statistics.median).sample() == pytest.approx(3e-3)


def test_median_and_spread() -> None:
    assert median_and_spread([3.0, 1.0, 2.0, 10.0, 2.5]) == (2.5, 0.5)
