"""Comparison of two callables by their time ratio, from rounds in which both ran.

The estimate is that of Hodges and Lehmann ("Estimates of Location Based on Rank Tests", 1963): the median of the means
of all pairs of the rounds' log ratios. Its confidence interval comes from the distribution of Wilcoxon's signed-rank
statistic (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 2014, section 3.3). Both are robust
against outliers, and the ratios need not be normally distributed.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95  # level of an interval: the usual one; margins of 1% in addition keep chance from deciding
MARGIN = 0.01  # margin: slower candidates are dropped, smaller gains are not timed, as they need most rounds
EXACT = 40  # max. rounds for the exact distribution; beyond, the normal approximation is off by at most one rank
MIN_ROUNDS = 3  # with fewer, chance alone may order two equal candidates


class Ratio(NamedTuple):
    """A ratio of times: the estimate, and its interval with confidence `CONFIDENCE`."""

    centre: float
    low: float
    high: float


EQUAL = Ratio(1.0, 1.0, 1.0)
UNKNOWN = Ratio(1.0, 0.0, math.inf)


def compare(ratios: Sequence[float]) -> Ratio:
    """Estimate the ratio of two times from one ratio per round.

    Fewer than six ratios are too few for Wilcoxon's interval. The interval then is that from the smallest to the
    largest log ratio, widened by its width on either side. For three to five normal values it is as reliable.
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
    """Return the rank, from either end, of the pair mean that bounds the interval; 0 if there is none."""
    tail = (1 - CONFIDENCE) / 2
    if count > EXACT:
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return math.floor(statistics.NormalDist(count * (count + 1) / 4, deviation).inv_cdf(tail) + 0.5)
    chances = np.ones(1)  # probability of each sum of ranks with random signs
    for rank in range(1, count + 1):
        chances = np.pad(chances, (0, rank)) / 2 + np.pad(chances, (rank, 0)) / 2
    return int(np.searchsorted(chances.cumsum(), tail, side="right"))
