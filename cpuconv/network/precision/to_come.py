"""What a tolerance bounds: the errors of samples, and by their spread those of samples to come.

The largest error of a few samples says little of the largest of others. So what one more sample stays below in 999 of
1000 cases is bounded too: m + t s sqrt(1 + 1 / n), for n errors of mean m and deviation s, t being Student's quantile
for n - 1. It may be `BEYOND` times the tolerance. Errors that are alike leave the largest to decide; where one of them
is a jump, such as a letter that is read otherwise, others are taken to jump too. Errors have longer tails than the
normal distribution, for which this holds: so the share is high.

Source: Hahn and Meeker, "Statistical Intervals" (1991), chapter 4, on prediction limits of a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.text import count_of

BEYOND = 1.5  # times the tolerance: what samples to come may err by
NEEDED = 4  # samples: of fewer, the spread says nothing
_NORMAL = 3.0902323  # the quantile of 99.9%
_FEW = (10.2145, 7.1732, 5.8934, 5.2076, 4.7853, 4.5008, 4.2968, 4.1437)  # Student's, from NEEDED - 1 degrees on


def bounded(errors: Sequence[float]) -> float:
    """What must be within the tolerance: the largest error of all samples, or `expected`, if that is more."""
    return max([*errors, expected(errors)])


def expected(errors: Sequence[float]) -> float:
    """What samples to come need of a tolerance, by the errors of some; 0 where these are too few to tell."""
    if len(errors) < NEEDED:
        return 0.0
    return to_come(errors) / BEYOND


def to_come(errors: Sequence[float]) -> float:
    """What the error of one more sample stays below, in 999 of 1000 cases."""
    if not np.isfinite(errors).all():
        return math.inf
    count = len(errors)
    return float(np.mean(errors) + _student(count - 1) * np.std(errors, ddof=1) * math.sqrt(1 + 1 / count))


def _student(degrees: int) -> float:
    """The quantile of 99.9% of Student's distribution."""
    at = degrees - NEEDED + 1
    return _FEW[at] if at < len(_FEW) else expanded(_NORMAL, degrees)


def expanded(z: float, degrees: int) -> float:
    """A quantile of Student's distribution by that of the normal one, for degrees beyond a few (Cornish, Fisher)."""
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def doubt(samples: int) -> str:
    """Why nothing is known of the errors of others; "" of enough samples."""
    if samples >= NEEDED:
        return ""
    return f"measured on {count_of(samples, 'sample')}: by how much others err more is told by {NEEDED} or more"
