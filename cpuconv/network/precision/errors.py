"""Error metrics of a network's outputs relative to those of float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[Outputs, Outputs], float]  # takes reference outputs and others; 0 if they are equal
_GAP = 8  # ratio of RMS values from which columns are separate: scores are below 1, coordinates some hundred


def relative_rms(reference: Outputs, outputs: Outputs) -> float:
    """RMS of an output's difference relative to the RMS of the reference output; the largest of all outputs.

    Columns of very different size, such as coordinates and scores of boxes, are separate (`relative_error`).

    Parameters
    ----------
    reference, outputs : mapping of str to numpy.ndarray
        Arrays with the same names; integers are converted to float64.

    Returns
    -------
    float
        Infinite if an output has another shape, or other non-finite elements than the reference.
    """
    return max((relative_error(squared_errors(right, outputs[name])) for name, right in reference.items()), default=0.0)


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


def squared_errors(right: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Sums of squares of differences, and of the reference's values, by column: (2, columns).

    An array (N, A, B) has one column for each index of the shorter of its last two axes, such as a coordinate or the
    score of boxes. Other arrays are one column. Differences are infinite if shapes or non-finite elements differ.
    """
    if right.shape != got.shape:
        return np.array([[np.inf], [1.0]])
    wide = np.complex128 if right.dtype.kind == "c" else np.float64
    right, got = right.astype(wide), got.astype(wide)
    finite = np.isfinite(right)
    if not finite.all():
        if not np.array_equal(right[~finite], got[~finite], equal_nan=True):
            return np.array([[np.inf], [1.0]])
        right, got = (np.where(finite, each, 0) for each in (right, got))
    if not np.isfinite(got).all():
        return np.array([[np.inf], [1.0]])
    over = (0, 1 + int(right.shape[1] < right.shape[2])) if right.ndim == 3 and right.size else None
    squares = (np.square(np.abs(each) if each.dtype.kind == "c" else each) for each in (got - right, right))
    return np.stack([each.sum(over).reshape(-1) for each in squares])


def relative_error(squares: np.ndarray) -> float:
    """Relative RMS error from `squared_errors`: the largest of all groups of columns.

    Columns are sorted by the RMS of their values; a group ends where the next RMS is larger by a factor above `_GAP`.
    """
    difference, value = squares[:, np.argsort(squares[1])]
    starts = [0, *(1 + np.flatnonzero((value[:-1] > 0) & (value[1:] > _GAP**2 * value[:-1])))]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.add.reduceat(difference, starts) / np.add.reduceat(value, starts)
    return float(np.sqrt(np.nan_to_num(parts, posinf=np.inf).max()))
