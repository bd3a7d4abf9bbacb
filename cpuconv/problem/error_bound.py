"""Upper bound on the error of a direct sum in floating point, per output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import layouts
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reference import conv2d, values
from cpuconv.problem.types import ALL_F32

MAX_ROUNDING_ERROR = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Maximum relative rounding error of each result type."""
MAX_UNDERFLOW_ERROR = {"f32": 0.0, "bf16": 2.0**-126, "f16": 2.0**-25}
"""Maximum absolute rounding error of small numbers: half of the smallest float16 subnormal; bfloat16 instructions flush
subnormal numbers to zero."""

_ERROR_PER_TERM = (
    2 * 2.0**-24
)  # per term, of the sum of all terms: instructions also round within groups of multiply-adds
_MIN_NORMAL = 2.0**-126  # instructions may flush smaller numbers to zero
_MAX_SLOPE = 1.5  # maximum factor by which an activation enlarges an error; leaky_relu: its slope
_ACTIVATION_ERROR = 4e-6  # error of an activation in kernels, relative to its result or to 1


def error_bound(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, problem: ConvProblem, residual: np.ndarray | None = None
) -> np.ndarray:
    """Upper bound on the error of summing each output's terms in float32 and rounding to the result's type.

    It does not cover Winograd's and Fourier's transforms, which have errors of their own.

    Parameters
    ----------
    x, w, bias, problem, residual
        As in `reference.conv2d`, with floating-point sums.

    Returns
    -------
    numpy.ndarray
        Physical float64 array in ``problem.out_layout``; zero in padding channels of a block.
    """
    expected = np.abs(conv2d(x, w, bias, problem, residual))
    size = conv2d(
        np.abs(values(x, problem.types.x)),
        np.abs(values(w, problem.types.w)),
        None if bias is None else np.abs(bias),
        replace(problem, activation=None, types=ALL_F32),
        None if residual is None else np.abs(values(residual, problem.types.y)),
    )
    terms = problem.cg * problem.r * problem.s + (bias is not None) + (residual is not None)
    error = terms * (_ERROR_PER_TERM * size + _MIN_NORMAL)
    if problem.activation is not None:
        function, *scalars = problem.activation
        slope = max(1.0, abs(scalars[0])) if function == "leaky_relu" else _MAX_SLOPE
        error = slope * error + _ACTIVATION_ERROR * (expected + 1)
    name = problem.types.y.name
    bound = error + MAX_ROUNDING_ERROR[name] * (expected + error) + MAX_UNDERFLOW_ERROR[name]
    return layouts.from_nchw(layouts.to_nchw(bound, problem.out_layout, problem.k), problem.out_layout)
