"""Calibration of a tensor's range: minimal squared error, percentiles, entropy, or minimum and maximum.

Each method takes a tensor's histogram and returns the ends of a range that includes 0, so that 0 is exact.
Sources: Migacz, "8-bit inference with TensorRT" (2017), for entropy; Nagel et al., "A white paper on neural network
quantization" (2021), section 3.1, for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from baselib.data_classes import dataclass

STEPS = 255  # quantisation steps between the lower and upper limit of int8
_ITERATIONS = 3  # iterations per end
_FRACTIONS = np.linspace(0.05, 1.0, 96)  # fractions of the whole range that are tried for entropy
_END_FRACTIONS = np.linspace(0.1, 1.0, 31)  # fractions of each end, where the range has two


@dataclass(frozen=True)
class Histogram:
    """Histogram of a tensor: `counts` of equal bins from `low` to `high`; low ≤ 0 ≤ high."""

    low: float
    high: float
    counts: np.ndarray

    @property
    def centres(self) -> np.ndarray:
        """Representative value of each bin: its centre, but 0 for the bin of 0, as 0 is the most frequent value."""
        width = (self.high - self.low) / len(self.counts)
        centres = self.low + width * (np.arange(len(self.counts)) + 0.5)
        if width:
            centres[min(int(-self.low / width), len(centres) - 1)] = 0.0
        return centres


Range = tuple[float, float]


def min_max(seen: Histogram, percentile: float) -> Range:
    """Minimum and maximum of the seen values."""
    return seen.low, seen.high


def percentiles(seen: Histogram, percentile: float) -> Range:
    """Range that excludes at most (100 - percentile) % of the values at each end."""
    edges = np.linspace(seen.low, seen.high, len(seen.counts) + 1)
    share = np.cumsum(seen.counts) / max(seen.counts.sum(), 1)
    beyond = 1 - percentile / 100
    low = edges[int(np.searchsorted(share, beyond, side="right"))]
    high = edges[min(int(np.searchsorted(share, 1 - beyond)) + 1, len(edges) - 1)]
    return min(float(low), 0.0), max(float(high), 0.0)


def least_error(seen: Histogram, percentile: float = 0.0) -> Range:
    """Find the range with the least squared quantisation error.

    Rounded values other than 0 have a mean squared error of (high - low)² / (12 · 255²). For clipped values, the error
    is their distance from the range. The ends are optimised in turns: the total error is convex.
    """
    values, edges = seen.centres, np.linspace(seen.low, seen.high, len(seen.counts) + 1)
    weights = np.stack([seen.counts, seen.counts * values, seen.counts * values**2])
    below = np.cumsum(np.pad(weights, ((0, 0), (1, 0))), axis=1)  # each edge
    cut_low, cut_high = (
        np.where(side, whole[2] - 2 * edges * whole[1] + edges**2 * whole[0], np.inf)
        for side, whole in ((edges <= 0, below), (edges >= 0, below[:, -1:] - below))
    )
    rounds = seen.counts[values != 0].sum() / (12 * STEPS**2)
    low, high = seen.low, seen.high
    for _ in range(_ITERATIONS):
        high = edges[np.argmin(cut_high + rounds * (edges - low) ** 2)]
        low = edges[np.argmin(cut_low + rounds * (high - edges) ** 2)]
    return float(low), float(high)


def _candidates(seen: Histogram) -> Iterator[Range]:
    """Ranges to try: the whole range, and smaller ones."""
    if not seen.low or not seen.high:
        return ((seen.low * part, seen.high * part) for part in _FRACTIONS)
    return ((seen.low * low, seen.high * high) for low in _END_FRACTIONS for high in _END_FRACTIONS)


def least_divergence(seen: Histogram, percentile: float) -> Range:
    """Find the range that minimises the Kullback-Leibler divergence between the distribution and its quantised form."""
    width = (seen.high - seen.low) / len(seen.counts)
    counts = seen.counts.copy()
    counts[np.argmin(np.abs(seen.centres))] = 0  # zeros are exact in every range, and frequent after a Relu
    best, found = np.inf, (seen.low, seen.high)
    for low, high in _candidates(seen):
        first, last = round((low - seen.low) / width), round((high - seen.low) / width)
        divergence = _divergence(counts, first, last) if last - first > STEPS else np.inf
        if divergence < best:
            best, found = divergence, (low, high)
    return found


def _divergence(counts: np.ndarray, first: int, last: int) -> float:
    """Divergence of the distribution, clipped to the range, from its quantised form."""
    inside = counts[first:last].astype(np.float64)
    whole = inside.copy()
    whole[0] += counts[:first].sum()
    whole[-1] += counts[last:].sum()
    level = np.arange(len(inside)) * (STEPS + 1) // len(inside)
    occupied = whole > 0
    sums = np.bincount(level, inside, STEPS + 1)
    places = np.bincount(level, occupied, STEPS + 1)
    shared = np.where(occupied, (sums / np.maximum(places, 1))[level], 0)
    if not shared.sum():
        return float("inf")
    p, q = whole / whole.sum(), shared / shared.sum()
    used = occupied & (q > 0)
    lost = p[occupied & (q == 0)].sum()  # values of an empty level count as if it were nearly empty
    return float((p[used] * np.log(p[used] / q[used])).sum() + lost * np.log(1e9))


METHODS: dict[str, Callable[[Histogram, float], Range]] = {
    "mse": least_error,
    "percentile": percentiles,
    "entropy": least_divergence,
    "minmax": min_max,
}


def range_of(method: str, seen: Histogram, percentile: float) -> Range:
    """Compute the range by a method; it is empty if all values are 0."""
    return METHODS[method](seen, percentile) if seen.low < seen.high else (0.0, 0.0)
