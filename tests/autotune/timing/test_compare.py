"""The one comparison: its centre, its interval, and what too few rounds tell."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from autotune.timing.compare import CONFIDENCE, UNKNOWN, compare


def test_the_centre_is_hodges_and_lehmanns() -> None:
    assert compare([2.0]).centre == pytest.approx(2.0)
    logs = [0.1, 0.2, 0.6]  # means of pairs: 0.1, 0.15, 0.2, 0.35, 0.4, 0.6
    assert compare([math.exp(each) for each in logs]).centre == pytest.approx(math.exp(0.275))


def test_the_centre_is_near_and_no_outlier_moves_it() -> None:
    rng = random.Random(5)
    drawn = [[rng.lognormvariate(0, 0.03) for _ in range(15)] for _ in range(400)]
    off = [
        statistics.fmean(abs(middle(each) - 1.0) for each in drawn)
        for middle in (lambda each: compare(each).centre, statistics.median)
    ]
    assert off[0] < 0.9 * off[1]
    assert max(compare([*each[:12], 9.0, 9.0, 9.0]).centre for each in drawn) < 1.06


@given(st.lists(st.floats(0.5, 2.0), min_size=6, max_size=14, unique=True))
def test_the_interval_is_wilcoxons(ratios: list[float]) -> None:
    """It holds just those values that the signed-rank test does not refuse."""
    found, logs = compare(ratios), [math.log(ratio) for ratio in ratios]
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    values = np.array([(low + high) / 2 for low, high in itertools.pairwise(means) if high - low > 1e-9])
    refused = wilcoxon(np.array(logs) - values[:, np.newaxis], axis=1, method="exact").pvalue <= 1 - CONFIDENCE
    np.testing.assert_array_equal(refused, (values <= math.log(found.low)) | (math.log(found.high) <= values))


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 15, 40])
def test_the_interval_holds_the_truth(count: int) -> None:
    rng = random.Random(3)
    found = [compare([rng.lognormvariate(0.1, 0.05) for _ in range(count)]) for _ in range(400)]
    held = statistics.fmean(each.low <= math.exp(0.1) <= each.high for each in found)
    assert held >= CONFIDENCE - 0.03
    assert all(each.low <= each.centre <= each.high for each in found)


def test_too_few_rounds_tell_nothing() -> None:
    assert compare([]) == UNKNOWN
    assert (compare([1.5, 1.5]).low, compare([1.5, 1.5]).high) == (0.0, math.inf)
    few = compare([1.2, 1.3, 1.4])
    assert 1.0 < few.low < 1.2 and few.high > 1.4
    assert compare([1.0, 1.3, 1.4]).low < 1.0


@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=20))
def test_turned_round_it_says_the_same(ratios: list[float]) -> None:
    one, other = compare(ratios), compare([1 / ratio for ratio in ratios])
    assert one.centre == pytest.approx(1 / other.centre)
    assert one.low == pytest.approx(1 / other.high)
