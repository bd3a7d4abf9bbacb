"""One convolution that tests of the interface share, and its result in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import cpuconv
import layouts
from cpuconv.isa import current
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from support import oracle

LIMIT = 1e-4
BLOCKED = layouts.blocked(current().lanes).name
PROBLEM = ConvProblem(2, 20, 8, 12, 24, 3, 3, pads=(1, 1, 1, 1))
X, W = oracle.normal((2, 20, 8, 12)), oracle.normal((24, 20, 3, 3), 1) / 13
EXPECTED = reference.conv2d(X, W, None, PROBLEM)
RELU = np.maximum(EXPECTED, 0)


def conv(x: Any = X, w: Any = W, bias: Any = None, **options: Any) -> np.ndarray:
    """The convolution of this file, by the model."""
    return cpuconv.conv2d(x, w, bias, **{"padding": 1, "strategy": "heuristic", "threads": 1, **options})


def close(y: np.ndarray, expected: np.ndarray) -> None:
    assert reference.relative_error(y, expected) <= LIMIT
