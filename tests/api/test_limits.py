"""Results of bytes that are clamped for each output channel: as if they were clamped afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cpuconv


@pytest.mark.parametrize(
    ("channels", "kernel", "groups"), [((24, 20), 1, 1), ((24, 20), 3, 1), ((24, 24), 3, 24), ((3, 20), 3, 1)]
)
@pytest.mark.parametrize("ending", ({}, {"activation": "silu"}, {"activation": "relu"}, {"residual": True}))
def test_clamped_results(channels, kernel, groups, ending):
    rng, (c, k) = np.random.default_rng(0), channels
    x, w = (
        rng.integers(0, 256, (2, c, 9, 7), np.uint8),
        rng.integers(-127, 128, (k, c // groups, kernel, kernel), np.int8),
    )
    scale = 0.5 / (c // groups * kernel**2) ** 0.5 / 100
    scales = cpuconv.Quantization(
        x_scale=1.0, x_zero_point=120, w_scale=scale, y_scale=0.6, y_zero_point=90, residual_scale=0.1
    )
    ending = dict(ending)
    if ending.get("residual"):
        ending["residual"] = rng.integers(0, 256, (2, k, 9, 7), np.uint8)
    ends = np.sort(rng.integers(30, 200, (2, k)), 0)
    given = {"padding": kernel // 2, "groups": groups, "strategy": "heuristic", **ending}
    whole = cpuconv.conv2d(x, w, quantization=scales, **given)
    for least, most in (ends.tolist(), (ends[0].tolist(), None), (None, 100)):
        limited = cpuconv.conv2d(x, w, quantization=replace(scales, y_least=least, y_most=most), **given)
        low, high = (
            np.reshape(end, (-1, 1, 1)) for end in (0 if least is None else least, 255 if most is None else most)
        )
        expected = np.clip(whole, low, high)
        assert (limited == expected).all() and (expected != whole).any()
