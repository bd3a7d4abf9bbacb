"""Whether the output of a candidate is right: its error and the limit on it, by the types of the problem."""

from __future__ import annotations

import numpy as np

from cpuconv.problem.error_bound import LEAST_OF_RESULT, OF_RESULT
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import BYTES
from cpuconv.problem.quantized_ending import is_exact
from cpuconv.problem.reference import relative_error, values

ERROR_LIMITS = {"exact": 2e-5, "standard": 1e-4, "fast": 1e-2}
"""Largest error an accuracy class admits, relative to the output's largest value, on unit-normal data; of floats
of 16 bits beyond what rounding the result takes."""


def limit_of(problem: ConvProblem, accuracy: str) -> float:
    """Largest error that a candidate of the accuracy class may have: none where the result is exact."""
    whole = is_exact(problem) or problem.types.y in BYTES
    return 0.0 if whole else ERROR_LIMITS[accuracy]


def error_of(problem: ConvProblem, y: np.ndarray, expected: np.ndarray) -> float:
    """Largest error of an output, relative to the oracle's largest value.

    Beyond its own rounding where it is of 16 bits, and beyond one step where it is bytes that a function made which
    kernels approximate: they may round to the other side of a half.
    """
    y = values(y, problem.types.y)
    expected = expected.astype(np.float64)
    if problem.types.y.half:
        name = problem.types.y.name
        free = OF_RESULT[name] * np.abs(expected) + LEAST_OF_RESULT[name]
    elif problem.types.y in BYTES and not is_exact(problem):
        free = np.ones_like(expected)
    else:
        return relative_error(y, expected)
    with np.errstate(invalid="ignore"):
        near = np.abs(y - expected) <= free
        beyond = np.where(near, expected, y + np.clip(expected - y, -free, free))
    return relative_error(beyond, expected)
