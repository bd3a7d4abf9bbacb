"""The oracle against the definition written as loops, and against SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.signal import correlate

import layouts
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from support.geometry import of, problems, upto


def by_loops(x, w, bias, p: ConvProblem, residual) -> np.ndarray:
    """Logical NCHW in and out; every product that the definition names, taps on padding left out."""
    y = np.zeros(p.out_shape)
    for n, k, oy, ox in itertools.product(*map(range, p.out_shape)):
        total = float(bias[k]) + float(residual[n, k, oy, ox])
        for c, r, s in itertools.product(range(p.cg), range(p.r), range(p.s)):
            iy = oy * p.stride[0] + r * p.dilation[0] - p.pads[0]
            ix = ox * p.stride[1] + s * p.dilation[1] - p.pads[2]
            if 0 <= iy < p.h and 0 <= ix < p.w:
                total += float(x[n, k // p.kg * p.cg + c, iy, ix]) * float(w[k, c, r, s])
        y[n, k, oy, ox] = total
    return y


def operands(p: ConvProblem, seed: int):
    """Logical x, w, bias and residual in float32, unit normal."""
    rng = np.random.default_rng(seed)
    shapes = (p.in_shape, p.weight_shape, (p.k,), p.out_shape)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


SMALL = {"n": upto(2, 0), "groups": upto(3), "h": upto(5), "w": upto(5), "r": upto(5), "s": upto(5), "pad": upto(4, 0)}


@settings(max_examples=120, deadline=None)
@given(problems(**SMALL, activation=of(None, "relu", ("leaky_relu", 0.1))), st.integers(0, 1000))
def test_against_loops(p, seed):
    assume(p.flops < 16_000)
    x, w, bias, residual = operands(p, seed)
    residual = residual if p.residual else np.zeros_like(residual)
    expected = by_loops(x, w, bias, p, residual)
    if p.activation:
        slope = 0.0 if p.activation[0] == "relu" else p.activation[1]
        expected = np.where(expected > 0, expected, slope * expected)
    stored = layouts.from_nchw(residual, p.out_layout) if p.residual else None
    y = reference.conv2d(layouts.from_nchw(x, p.in_layout), w, bias, p, stored)
    assert y.dtype == np.float64 and y.shape == layouts.get(p.out_layout).shape(*p.out_shape)
    np.testing.assert_allclose(layouts.to_nchw(y, p.out_layout, p.k), expected, rtol=1e-11, atol=1e-11)
    assert np.count_nonzero(y) == np.count_nonzero(layouts.to_nchw(y, p.out_layout, p.k))


def test_against_scipy():
    p = ConvProblem(2, 13, 20, 17, 9, 5, 3, pads=(2, 2, 1, 1))
    x, w, bias, _ = operands(p, 0)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (2, 2), (1, 1)))
    expected = np.array([[correlate(image, kernel.astype(float), "valid")[0] for kernel in w] for image in padded])
    np.testing.assert_allclose(reference.conv2d(x, w, bias, p), expected + bias[:, None, None], rtol=1e-10, atol=1e-10)


def test_tails_and_inputs_are_left_alone():
    p = ConvProblem(1, 5, 4, 4, 6, 3, 3, pads=(1, 1, 1, 1), in_layout="NCHW8c", out_layout="NCHW16c", residual=True)
    x, w, bias, residual = operands(p, 1)
    stored = layouts.from_nchw(x, "NCHW8c")
    stored[..., 5:] = np.nan
    given_residual = layouts.from_nchw(residual, "NCHW16c")
    copies = [array.copy() for array in (stored, w, bias, given_residual)]
    y = reference.conv2d(stored, w, bias, p, given_residual)
    assert np.isfinite(y).all() and not y[..., 6:].any()
    for array, copy in zip((stored, w, bias, given_residual), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_nan_and_infinity_spread_as_far_as_the_kernel_reaches():
    p = ConvProblem(1, 1, 7, 7, 1, 3, 3, pads=(1, 1, 1, 1))
    x, w = np.ones(p.in_shape, np.float32), np.ones(p.weight_shape, np.float32)
    x[0, 0, 3, 3] = np.nan
    x[0, 0, 0, 0] = np.inf
    y = reference.conv2d(x, w, None, p)[0, 0]
    assert np.isnan(y[2:5, 2:5]).all() and np.isnan(y).sum() == 9
    assert np.isinf(y[:2, :2]).all() and np.isinf(y).sum() == 4


def test_padding_adds_no_nan():
    p = ConvProblem(1, 1, 3, 3, 1, 3, 3, pads=(1, 1, 1, 1))
    w = np.ones(p.weight_shape, np.float32)
    w[0, 0, 0, 0] = np.inf
    y = reference.conv2d(np.ones(p.in_shape, np.float32), w, None, p)[0, 0]
    assert np.isfinite(y[0]).all() and np.isinf(y[1:, 1:]).all()


def test_relative_error():
    expected = np.array([1.0, -4.0, np.inf, np.nan])
    assert reference.relative_error(np.array([1.0, -4.0, np.inf, np.nan], np.float32), expected) == 0
    assert reference.relative_error(np.array([1.5, -4.0, np.inf, np.nan]), expected) == 0.125
    assert reference.relative_error(np.array([1.0, -4.0, -np.inf, np.nan]), expected) == np.inf
    assert reference.relative_error(np.array([np.nan, -4.0, np.inf, np.nan]), expected) == np.inf
    assert reference.relative_error(np.empty(0), np.empty(0)) == 0
    finite = np.array([1.0, -4.0])
    assert reference.relative_error(np.array([1.5, -4.0], np.float32), finite) == 0.125
    assert reference.relative_error(np.array([1.5, np.nan], np.float32), finite) == np.inf
    assert reference.relative_error(np.array([1.5, np.inf], np.float32), finite) == np.inf
    assert reference.relative_error(np.ones(2, np.float32), np.zeros(2)) == 1.0
    with pytest.raises(ValueError, match="'y' must be of shape"):
        reference.relative_error(np.empty(1), expected)
