"""Ranges of bytes against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.quantizing.ranges import METHODS, STEPS, Histogram, range_of

RNG = np.random.default_rng(0)
VALUES = {
    "normal": RNG.standard_normal(200_000),
    "relu": np.maximum(RNG.standard_normal(200_000), 0),
    "outliers": np.concatenate([RNG.standard_normal(200_000), [60.0, -9.0]]),
    "negative": -RNG.exponential(1, 100_000),
    "heavy": RNG.standard_t(3, 200_000),
}


def histogram(values: np.ndarray) -> Histogram:
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    return Histogram(low, high, np.histogram(values, 2048, (low, high))[0])


def error(values: np.ndarray, low: float, high: float) -> float:
    """The mean square of what bytes of a range lose."""
    step = (high - low) / STEPS
    zero = np.rint(-low / step)
    return float(np.square((np.clip(np.rint(values / step) + zero, 0, STEPS) - zero) * step - values).mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_range_has_zero_in_it_and_is_no_larger_than_what_was_seen(values, method):
    seen = histogram(values)
    low, high = range_of(method, seen, 99.9)
    assert seen.low <= low <= 0 <= high <= seen.high and low < high


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_min_max(values):
    assert range_of("minmax", histogram(values), 0) == (min(values.min(), 0), max(values.max(), 0))


@pytest.mark.parametrize("percentile", [99.0, 99.9])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_percentiles(values, percentile):
    seen = histogram(values)
    part = (seen.high - seen.low) / len(seen.counts)
    low, high = range_of("percentile", seen, percentile)
    assert low == pytest.approx(min(np.percentile(values, 100 - percentile), 0), abs=2 * part)
    assert high == pytest.approx(max(np.percentile(values, percentile), 0), abs=2 * part)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_least_error_is_that_of_all_ranges(values):
    seen = histogram(values)
    found = error(values, *range_of("mse", seen, 0))
    parts = np.linspace(0.02, 1, 50)
    pairs = (
        [(low, high) for low in parts for high in parts] if seen.low and seen.high else [(part, part) for part in parts]
    )
    sample = values[:: max(1, len(values) // 20_000)]
    best = min(pairs, key=lambda pair: error(sample, seen.low * pair[0], seen.high * pair[1]))
    assert found <= 1.1 * error(values, seen.low * best[0], seen.high * best[1])
    assert found <= error(values, seen.low, seen.high)


def divergence(values: np.ndarray, low: float, high: float, seen: Histogram) -> float:
    """Of the distribution of clamped values from that of the same as bytes, each bin's share spread over its level."""
    edges = np.linspace(seen.low, seen.high, len(seen.counts) + 1)
    inside = (edges[:-1] >= low - 1e-9) & (edges[1:] <= high + 1e-9)
    values = values[values != 0]  # zeros are exact
    p = np.histogram(np.clip(values, edges[:-1][inside][0], edges[1:][inside][-1]), edges)[0][inside].astype(float)
    own = np.histogram(values, edges)[0][inside].astype(float)
    q = np.zeros_like(p)
    for level in np.array_split(np.arange(len(p)), STEPS + 1):
        used = level[p[level] > 0]
        q[used] = own[level].sum() / max(len(used), 1)
    p, q = p / p.sum(), q / q.sum()
    used = (p > 0) & (q > 0)
    return float((p[used] * np.log(p[used] / q[used])).sum())


@pytest.mark.parametrize("name", ["outliers", "heavy", "relu"])
def test_the_least_divergence_is_that_of_all_ranges(name):
    values, seen = VALUES[name], histogram(VALUES[name])
    low, high = range_of("entropy", seen, 0)
    found = divergence(values, low, high, seen)
    others = [divergence(values, seen.low * part, seen.high * part, seen) for part in np.linspace(0.2, 1, 9)]
    assert found <= min(others) + 1e-2
    if name == "outliers":
        assert high < 0.5 * seen.high


@pytest.mark.parametrize("method", METHODS)
def test_zeros_alone_have_an_empty_range(method):
    assert range_of(method, Histogram(0.0, 0.0, np.zeros(2048, np.int64)), 99) == (0.0, 0.0)
