"""Rounding of weights to bfloat16 whose errors cancel."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.conv.balanced_rounding import round_balanced
from cpuconv.elements import from_bfloat16, to_bfloat16


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 3, 1, 1), (33, 1, 3, 3), (7, 40, 3, 3), (300, 65, 2, 2)])
def test_errors_of_a_filter_come_to_half_a_step_and_those_of_weights_stay_small(shape):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(shape).astype(np.float32) * rng.uniform(0.01, 10, (shape[0], 1, 1, 1)).astype("f4")
    made = round_balanced(weights)
    assert made.shape == shape and made.dtype == np.uint16
    steps = np.abs(from_bfloat16(to_bfloat16(weights) + np.uint16(1)) - from_bfloat16(to_bfloat16(weights)))
    errors, nearest = (from_bfloat16(bits).astype(np.float64) - weights for bits in (made, to_bfloat16(weights)))
    assert (np.abs(errors) < steps).all()  # one of the two numbers beside it
    rows, before = (np.abs(each.reshape(shape[0], -1).sum(1)) for each in (errors, nearest))
    assert (rows <= before + 1e-6).all() and (rows <= steps.reshape(shape[0], -1).max(1)).all()
    assert np.square(errors).sum() <= 1.25 * np.square(nearest).sum()
    if np.prod(shape[1:]) > 30:
        assert rows.mean() < before.mean() / 3


def test_what_bfloat16_holds_and_what_is_not_finite_stays():
    rng = np.random.default_rng(1)
    held = from_bfloat16(to_bfloat16(rng.standard_normal((9, 20, 3, 3)).astype(np.float32)))
    np.testing.assert_array_equal(round_balanced(held), to_bfloat16(held))
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.4028235e38, 1.0], np.float32).reshape(8, 1, 1, 1)
    np.testing.assert_array_equal(round_balanced(odd), to_bfloat16(odd))
    mixed = np.full((1, 4, 3, 3), 1.003, np.float32)
    mixed[0, 0, 0, 0] = np.inf
    np.testing.assert_array_equal(round_balanced(mixed), to_bfloat16(mixed))
