"""Check of a candidate's output: its error and the error limit, by the problem's types."""

from __future__ import annotations

import numpy as np

from cpuconv.problem.error_bound import MAX_ROUNDING_ERROR, MAX_UNDERFLOW_ERROR
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import INT8_TYPES
from cpuconv.problem.quantized_epilogue import is_exact
from cpuconv.problem.reference import relative_error, values

ERROR_LIMITS = {"exact": 2e-5, "standard": 1e-4, "fast": 1e-2}
"""Largest error per accuracy class, relative to the output's largest value, on unit-normal data. For float16 and
bfloat16 it is in addition to the rounding of the result."""


def limit_of(problem: ConvProblem, accuracy: str) -> float:
    """Return the largest error allowed for an accuracy class: 0 where the result is exact or int8 / uint8."""
    whole = is_exact(problem) or problem.types.y in INT8_TYPES
    return 0.0 if whole else ERROR_LIMITS[accuracy]


def error_of(problem: ConvProblem, y: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error of an output, relative to the reference's largest value.

    Errors within the rounding of a 16-bit output do not count. For a function that kernels approximate, neither does
    one step of an int8 / uint8 output, as kernels may round to the other side of a half.
    """
    y = values(y, problem.types.y)
    expected = expected.astype(np.float64)
    if problem.types.y.half:
        name = problem.types.y.name
        free = MAX_ROUNDING_ERROR[name] * np.abs(expected) + MAX_UNDERFLOW_ERROR[name]
    elif problem.types.y in INT8_TYPES and not is_exact(problem):
        free = np.ones_like(expected)
    else:
        return relative_error(y, expected)
    with np.errstate(invalid="ignore"):
        near = np.abs(y - expected) <= free
        beyond = np.where(near, expected, y + np.clip(expected - y, -free, free))
    return relative_error(beyond, expected)
