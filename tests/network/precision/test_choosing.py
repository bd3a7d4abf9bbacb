"""The choice among precisions, with errors and times that are made up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from cpuconv.network.precision.choosing import finalists
from cpuconv.network.precision.search import Rounding


class Chosen(NamedTuple):
    rounding: Rounding
    error: float
    errors: Sequence[float]
    seconds: Mapping[Rounding, float]


def choose(trials: MadeUp, tolerance: float) -> Chosen:
    """The fastest finalist, as `run` or the models say."""
    found, errors = (made := finalists(trials, tolerance)).found, made.errors
    seconds = {each.rounding: trials.seconds(each.rounding) for each in found}
    best = min(found, key=lambda each: seconds[each.rounding] / each.least)
    return Chosen(best.rounding, best.error, errors, seconds)


class MadeUp:
    """Operators whose errors are independent and whose times add up; a change of precision between neighbours costs."""

    def __init__(self, errors, gains, change=0.0, *, run=None, whole=1.0, measured_gains=None, base=0.0) -> None:
        self.made_errors, self.gains, self.change = errors, gains, change
        self.run, self.whole, self.measured_gains, self.base = run, whole, measured_gains, base
        self.measured: list[Rounding] = []

    @property
    def count(self) -> int:
        return len(self.gains)

    def correct(self) -> None:
        self.gains = self.measured_gains or self.gains

    def errors(self) -> list[float]:
        return list(self.made_errors)

    def modelled(self, rounding: Rounding) -> float:
        changes = sum((at in rounding) != (at - 1 in rounding) for at in range(1, self.count))
        return 10.0 - sum(self.gains[at] for at in rounding) + self.change * changes

    def _all(self):
        return (Rounding(each) for n in range(self.count + 1) for each in itertools.combinations(range(self.count), n))

    def solved(self, prices) -> Rounding:
        return min(self._all(), key=lambda each: self.modelled(each) + sum(prices[at] for at in each))

    def error(self, rounding: Rounding) -> float:
        if not rounding:
            return self.base
        self.measured.append(rounding)
        return self.whole * math.sqrt(self.base**2 + sum(self.made_errors[at] ** 2 for at in rounding))

    def seconds(self, rounding: Rounding) -> float:
        return self.modelled(rounding) if self.run is None else self.run(rounding)

    def best(self, tolerance: float) -> float:
        """Seconds of the fastest rounding that is within, of all there are."""
        return min(self.modelled(each) for each in self._all() if self.error(each) <= tolerance)


EVERY = Rounding(range(4))


def test_all_round_where_that_is_within():
    trials = MadeUp([1e-3] * 4, [1.0] * 4)
    chosen = choose(trials, 0.01)
    assert chosen.rounding == EVERY and chosen.error == pytest.approx(2e-3)
    assert set(chosen.seconds) == {Rounding(), EVERY}


def test_none_rounds_where_nothing_is_within():
    chosen = choose(MadeUp([0.1] * 4, [1.0] * 4), 0.01)
    assert (chosen.rounding, chosen.error) == (Rounding(), 0.0)


def test_the_operator_of_large_error_and_small_gain_is_float32():
    assert choose(MadeUp([1e-3, 2e-2, 1e-3, 1e-3], [1.0, 0.5, 1.0, 1.0]), 0.01).rounding == EVERY - {1}


def test_an_operator_of_large_error_that_gains_much_may_be_all_that_rounds():
    assert choose(MadeUp([9e-3, 5e-3, 5e-3, 5e-3], [5.0, 0.1, 0.1, 0.1]), 0.01).rounding == {0}


def test_gaps_that_prices_leave_are_filled():
    """By price, two of the same ratio go together; one of them still fits."""
    chosen = choose(MadeUp([6e-3, 6e-3, 6e-3], [1.0, 1.0, 1.0]), 0.009)
    assert len(chosen.rounding) == 2 and chosen.error <= 0.009


@pytest.mark.parametrize("seed", range(30))
def test_within_the_tolerance_and_near_the_best(seed):
    rng = np.random.default_rng(seed)
    count = 8
    trials = MadeUp(10 ** rng.uniform(-4, -1.5, count), rng.uniform(0.1, 1, count), rng.uniform(0, 0.3), whole=1.2)
    for tolerance in (1e-3, 1e-2, 0.05):
        chosen = choose(trials, tolerance)
        seconds = trials.modelled(chosen.rounding)
        assert chosen.error == trials.error(chosen.rounding) <= tolerance
        most = trials.modelled(Rounding())
        assert seconds <= most and most - seconds >= 0.85 * (most - trials.best(tolerance))


@pytest.mark.parametrize(("slow", "expected"), [("mixed", Rounding()), ("none", EVERY - {1})])
def test_what_is_timed_decides(slow, expected):
    """The models find the mixture faster than float32, wherever it is."""

    def run(rounding: Rounding) -> float:
        return 3.0 if bool(rounding) == (slow == "mixed") else 2.0

    assert choose(MadeUp([1e-3, 2e-2, 1e-3, 1e-3], [1.0] * 4, run=run), 0.01).rounding == expected


@pytest.mark.parametrize("fastest", [Rounding(), EVERY])
def test_never_slower_than_one_precision(fastest):
    """Both are timed where both are within, whatever the models say."""
    chosen = choose(MadeUp([1e-4] * 4, [1.0] * 4, run=lambda each: 1.0 + (each != fastest)), 0.01)
    assert chosen.rounding == fastest
    assert chosen.seconds[chosen.rounding] == min(chosen.seconds.values())


@pytest.mark.parametrize(
    ("gain", "expected"), [(-1.0, EVERY - {1}), (-0.01, EVERY)], ids=["clearly faster", "no faster"]
)
def test_what_each_takes_decides_where_all_are_within(gain, expected):
    """By the models all gain; as measured, one loses."""
    chosen = choose(MadeUp([1e-4] * 4, [1.0] * 4, measured_gains=[1.0, gain, 1.0, 1.0]), 0.01)
    assert chosen.rounding == expected
    assert set(chosen.seconds) == {Rounding(), EVERY, EVERY - {1}}


def test_an_error_has_its_price_in_measured_time_too():
    """Two errors that are not within together: what is measured says which of the two gains more."""
    trials = MadeUp([8e-3, 8e-3, 1e-4], [2.0, 1.0, 1.0], measured_gains=[1.0, 2.0, 1.0])
    assert choose(trials, 0.01).rounding == {1, 2}


def test_infinite_errors_hide_no_others():
    chosen = choose(MadeUp([math.inf, 1e-3, 1e-3, 1e-3], [5.0, 1.0, 1.0, 1.0]), 0.01)
    assert chosen.rounding == {1, 2, 3}


def test_a_network_without_operators_that_round():
    chosen = choose(MadeUp([], []), 0.01)
    assert (chosen.rounding, chosen.error, chosen.errors) == (Rounding(), 0.0, [])


def test_what_rounds_is_within_together_with_the_error_that_there_is():
    """Of bytes: as much as they leave."""
    gains = [1.0, 2.0, 3.0]
    assert choose(MadeUp([4e-3, 4e-3, 4e-3], gains), 0.01).rounding == {0, 1, 2}
    chosen = choose(MadeUp([4e-3, 4e-3, 4e-3], gains, base=8e-3), 0.01)
    assert chosen.rounding == {1, 2} and chosen.error == pytest.approx(math.sqrt(96e-6))


def test_nothing_is_worth_timing_where_the_error_that_there_is_is_too_large():
    trials = MadeUp([1e-3], [1.0], base=0.011)
    assert finalists(trials, 0.01).found == () and not trials.measured


def test_nothing_is_measured_twice():
    trials = MadeUp([1e-3, 2e-2, 3e-3, 5e-3, 7e-3], [1.0, 0.5, 0.2, 0.4, 0.9])
    choose(trials, 0.006)
    assert len(trials.measured) == len({*trials.measured}) < 40
