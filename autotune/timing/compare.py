"""The one comparison: how much longer one callable takes than another, from rounds that both ran in.

The centre is that of Hodges and Lehmann ("Estimates of Location Based on Rank Tests", 1963): the median of the means of
all pairs of the rounds' log ratios. The interval is the one that belongs to it, from the distribution of Wilcoxon's
signed-rank statistic (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 2014, section 3.3). Outliers
move neither, and the ratios' distribution need not be normal.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95  # of an interval: what is usual; margins of 1% beside it keep chance from deciding
SAME = 0.01  # who is slower by more leaves, and nobody is timed to gain less: the last percents cost most rounds
EXACT = 40  # rounds for which the distribution is summed up; for more, the normal one is within a rank of it
MIN_ROUNDS = 3  # with fewer, chance alone may order two equal candidates


class Ratio(NamedTuple):
    """One time over another: the estimate, and the interval that it lies in with `CONFIDENCE`."""

    centre: float
    low: float
    high: float


EQUAL = Ratio(1.0, 1.0, 1.0)
UNKNOWN = Ratio(1.0, 0.0, math.inf)


def compare(ratios: Sequence[float]) -> Ratio:
    """The centre and interval of ratios of times, one a round.

    Fewer than six ratios have no such interval of Wilcoxon's. It then reaches from the least to the largest and as far
    again to either side, which holds the centre of three to five normal values as surely.
    """
    if not len(ratios):
        return UNKNOWN
    logs = np.log(ratios)
    first, second = _pairs(len(logs))
    means = np.sort((logs[first] + logs[second]) / 2)
    centre = math.exp(np.median(means))
    if len(logs) < MIN_ROUNDS:
        return UNKNOWN._replace(centre=centre)
    if cut := _cut(len(logs)):
        return Ratio(centre, math.exp(means[cut - 1]), math.exp(means[-cut]))
    wide = means[-1] - means[0]
    return Ratio(centre, math.exp(means[0] - wide), math.exp(means[-1] + wide))


@functools.lru_cache(maxsize=256)
def _pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(count)


@functools.lru_cache(maxsize=256)
def _cut(count: int) -> int:
    """Which of the sorted means of pairs, counted from either end, bounds the interval; 0 if none does."""
    tail = (1 - CONFIDENCE) / 2
    if count > EXACT:
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return math.floor(statistics.NormalDist(count * (count + 1) / 4, deviation).inv_cdf(tail) + 0.5)
    chances = np.ones(1)  # of each sum of ranks whose signs are drawn at random
    for rank in range(1, count + 1):
        chances = np.pad(chances, (0, rank)) / 2 + np.pad(chances, (rank, 0)) / 2
    return int(np.searchsorted(chances.cumsum(), tail, side="right"))
