"""What samples to come err by, told by the spread of some."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cpuconv.network.precision.prediction_bound import (
    MIN_SAMPLES,
    UNSEEN_FACTOR,
    bounded_error,
    doubt,
    needed_tolerance,
    prediction_bound,
)

STUDENT = {4: 10.2145, 5: 7.1732, 8: 4.7853, 11: 4.1437, 12: 4.0247, 21: 3.5518, 101: 3.1737}  # 99.9%, tables


@pytest.mark.parametrize("count", STUDENT)
def test_the_limit_is_that_of_a_prediction(count):
    errors = np.random.default_rng(count).uniform(0.5, 1.5, count)
    limit = errors.mean() + STUDENT[count] * errors.std(ddof=1) * math.sqrt(1 + 1 / count)
    assert prediction_bound(errors) == pytest.approx(limit, rel=0.01)


@pytest.mark.parametrize("count", [4, 8, 30])
def test_one_in_a_thousand_normal_errors_is_larger(count):
    drawn = np.random.default_rng(0).standard_normal((20_000, count + 1)) + 10
    beyond = [row[-1] > prediction_bound(row[:-1]) for row in drawn]
    assert 0.0003 < np.mean(beyond) < 0.002


def test_errors_that_are_alike_are_bounded_by_the_largest():
    errors = [1.0, 1.05, 0.95, 1.02]
    assert bounded_error(errors) == 1.05 and needed_tolerance(errors) < 1.05


def test_one_that_jumps_makes_others_likely():
    errors = [0.01] * 7 + [0.3]
    assert bounded_error(errors) == needed_tolerance(errors) == prediction_bound(errors) / UNSEEN_FACTOR > 0.35


def test_of_too_few_samples_nothing_is_expected():
    assert (
        bounded_error([]) == 0.0 and bounded_error([0.1, 0.9, 0.2]) == 0.9 and needed_tolerance([0.1, 0.9, 0.2]) == 0.0
    )
    assert [bool(doubt(samples)) for samples in (1, MIN_SAMPLES - 1, MIN_SAMPLES)] == [True, True, False]
    assert "1 sample:" in doubt(1)


def test_infinite_errors_stay_infinite():
    assert bounded_error([0.1, math.inf, 0.1, math.inf]) == math.inf
    assert bounded_error([0.0] * 8) == 0.0
