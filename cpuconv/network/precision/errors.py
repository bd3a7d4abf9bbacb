"""How far the outputs of a run are from those of float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[Outputs, Outputs], float]  # of the reference's outputs and others: 0 where they are the same


def relative_rms(reference: Outputs, outputs: Outputs) -> float:
    """The root of the mean squared difference of an output, relative to that of the output; the largest of all.

    Parameters
    ----------
    reference, outputs : mapping of str to numpy.ndarray
        Arrays of the same names; integers count as numbers.

    Returns
    -------
    float
        Infinite where an output has another shape, or a number where the reference has none.
    """
    return max((_of_one(right, outputs[name]) for name, right in reference.items()), default=0.0)


def number_of(value: Any) -> float:
    """What a user's metric gave; NaN is as far off as can be.

    Raises
    ------
    ArgumentError
        It is no number, or below 0.
    """
    try:
        error = float(value)
    except (TypeError, ValueError):
        error = -1.0
    if error < 0:
        raise ArgumentError(
            must("metric", "a function whose result is a number from 0 on", f"one that gives {value!r}")
        )
    return np.inf if np.isnan(error) else error


def _of_one(right: np.ndarray, got: np.ndarray) -> float:
    if right.shape != got.shape:
        return np.inf
    wide = np.complex128 if right.dtype.kind == "c" else np.float64
    right, got = right.astype(wide), got.astype(wide)
    finite = np.isfinite(right)
    if not np.array_equal(right[~finite], got[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return np.inf
    difference, scale = (float(np.linalg.norm(array.ravel())) for array in ((got - right)[finite], right[finite]))
    return difference / scale if scale else np.inf if difference else 0.0
