"""Scales of tensors and of weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cpuconv.quantizing.scales import quantize_array, scale_of, weights_of

FLOATS = st.floats(-1e4, 1e4, width=32)
ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4, max_side=6), elements=FLOATS)


@given(array=ARRAYS, axis=st.integers(0, 1), with_bias=st.booleans(), unit=st.floats(2**-20, 1024, width=32))
def test_weights_never_saturate_whichever_two_meet(array, axis, with_bias, unit):
    bias = np.linspace(-3, 3, array.shape[axis], dtype=np.float32) if with_bias else None
    made = weights_of(array, axis, bias, np.float32(unit), False)
    rows = np.moveaxis(made.array.astype(int), axis, 0).reshape(array.shape[axis], -1)
    for row in rows:
        pairs = row[:, None] + row
        np.fill_diagonal(pairs, 0)
        assert 255 * pairs.max(initial=0) < 2**15 and 255 * pairs.min(initial=0) >= -(2**15)
    assert (made.scale > 0).all() and np.isfinite(made.scale).all()


@given(array=ARRAYS, axis=st.integers(0, 1), full=st.booleans())
def test_weights_are_half_a_unit_off_at_most(array, axis, full):
    made = weights_of(array, axis, None, np.float32(1), full)
    scale = np.moveaxis(made.scale.reshape(-1, *[1] * (array.ndim - 1)), 0, axis).astype(np.float64)
    assert (np.abs(made.dequantized - array) <= 0.5 * scale * (1 + 1e-5)).all()


def test_only_channels_that_would_saturate_get_a_larger_scale():
    rows = np.float32([[1, 0.005, -0.9], [1, 1, 0], [-1, -0.5, 1], [0, 0, 0]])
    made = weights_of(rows, 0, None, np.float32(1), False)
    assert made.array.tolist() == [[127, 1, -114], [64, 64, 0], [-85, -43, 85], [0, 0, 0]]


@given(low=st.floats(-1e6, 0), high=st.floats(0, 1e6), dtype=st.sampled_from((np.uint8, np.int8)))
def test_zero_is_exact_and_ends_are_half_a_step_off_at_most(low, high, dtype):
    scale = scale_of(low, high, np.dtype(dtype))
    values = np.array([low, 0, high])
    floats = (quantize_array(values, scale).astype(float) - int(scale.zero)) * float(scale.scale)
    assert floats[1] == 0 and (np.abs(floats - values) <= 1.01 * float(scale.scale)).all()
    ends = scale.ends
    assert ends[0] <= 0 <= ends[1]


@pytest.mark.parametrize("value", [0.0, 1e-3, 40.0])
def test_a_bias_is_kept_where_weights_are_small_or_zero(value):
    bias = np.full(2, value, np.float32)
    made = weights_of(np.float32([[0, 0], [1e-12, 0]]), 0, bias, np.float32(0.1), False)
    assert made.bias is not None
    np.testing.assert_allclose(made.bias * (np.float32(0.1) * made.scale), bias, rtol=1e-6)
