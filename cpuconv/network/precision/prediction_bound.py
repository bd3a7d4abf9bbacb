"""Prediction bound for unseen inputs: a tolerance limits the samples' errors and a bound on the error of other inputs.

The largest error of a few samples is a poor estimate of the largest error of other inputs. Therefore the error that one
more sample does not exceed in 999 of 1000 cases is bounded too: m + t s sqrt(1 + 1 / n), for n errors with mean m and
standard deviation s, where t is Student's quantile for n - 1. It may be `UNSEEN_FACTOR` times the tolerance. With
similar errors, the largest one decides. If one of them is an outlier, such as a letter that is recognised differently,
outliers are expected for other inputs too. The formula holds for normal distributions; errors have longer tails, so the
share is high.

Source: Hahn and Meeker, "Statistical Intervals" (1991), chapter 4, on prediction limits of a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from baselib.text import count_of

UNSEEN_FACTOR = 1.5  # maximum error of unseen inputs, relative to the tolerance
MIN_SAMPLES = 4  # minimum number of samples for an estimate of the spread
_NORMAL = 3.0902323  # 99.9% quantile of the normal distribution
_FEW = (10.2145, 7.1732, 5.8934, 5.2076, 4.7853, 4.5008, 4.2968, 4.1437)  # Student's, from NEEDED - 1 degrees on


def bounded_error(errors: Sequence[float]) -> float:
    """The error that must be within the tolerance: the largest of all samples, or the larger `needed_tolerance`."""
    return max([*errors, needed_tolerance(errors)])


def needed_tolerance(errors: Sequence[float]) -> float:
    """The tolerance that unseen inputs need, from the errors of samples; 0 if these are too few."""
    if len(errors) < MIN_SAMPLES:
        return 0.0
    return prediction_bound(errors) / UNSEEN_FACTOR


def prediction_bound(errors: Sequence[float]) -> float:
    """The error that one more sample does not exceed in 999 of 1000 cases."""
    if not np.isfinite(errors).all():
        return math.inf
    count = len(errors)
    return float(np.mean(errors) + _student(count - 1) * np.std(errors, ddof=1) * math.sqrt(1 + 1 / count))


def _student(degrees: int) -> float:
    """The 99.9% quantile of Student's distribution."""
    at = degrees - MIN_SAMPLES + 1
    return _FEW[at] if at < len(_FEW) else expanded(_NORMAL, degrees)


def expanded(z: float, degrees: int) -> float:
    """Convert a normal quantile to Student's, by the Cornish-Fisher expansion; for more than a few degrees."""
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def doubt(samples: int) -> str:
    """Why the error of unseen inputs cannot be estimated; "" for enough samples."""
    if samples >= MIN_SAMPLES:
        return ""
    return f"measured on {count_of(samples, 'sample')}: by how much others err more is told by {MIN_SAMPLES} or more"
