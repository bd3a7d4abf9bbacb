"""Error metrics of a network's outputs relative to those of float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[Outputs, Outputs], float]  # takes reference outputs and others; 0 if they are equal


def relative_rms(reference: Outputs, outputs: Outputs) -> float:
    """RMS of an output's difference relative to the RMS of the reference output; the largest of all outputs.

    Parameters
    ----------
    reference, outputs : mapping of str to numpy.ndarray
        Arrays with the same names; integers are converted to float64.

    Returns
    -------
    float
        Infinite if an output has another shape, or other non-finite elements than the reference.
    """
    return max((_of_one(right, outputs[name]) for name, right in reference.items()), default=0.0)


def number_of(value: Any) -> float:
    """Validate the result of a user's metric; NaN becomes infinity.

    Raises
    ------
    ArgumentError
        It is not a number, or is below 0.
    """
    try:
        error = float(value)
    except (TypeError, ValueError):
        error = -1.0
    if error < 0:
        raise ArgumentError(
            must("metric", "a function that returns a number of 0 or more", f"one that returns {value!r}")
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
