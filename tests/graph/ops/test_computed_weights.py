"""Convolutions whose weights are computed: packed at run time, by the kernels of constant weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.graph import ops
from cpuconv.isa import current
from support.graph.draws import ACTIVATIONS, numbers
from support.graph.lowered import check, small_work_is_shared  # noqa: F401
from support.graphs import parse

LANES = current().lanes
OP = ops.TABLE["Conv"]
SIZES = st.sampled_from((1, 3, LANES, LANES + 5, 3 * LANES))


@given(
    st.sampled_from(((1, 1), (3, 1), (2, 3))), SIZES, SIZES, st.lists(st.integers(1, 3), min_size=1, max_size=2),
    st.integers(1, 2), st.integers(0, 1), st.booleans(), ACTIVATIONS, st.sampled_from((1, 2)), st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_sizes(images, channels, filters, kernel, stride, pad, biased, activation, threads, apart):
    (n, groups), rank, rng = images, len(kernel), np.random.default_rng(channels + filters)
    x = numbers(rng, (n, groups * channels, *[9] * rank))
    arrays = [x, numbers(rng, (groups * filters, channels, *kernel)), numbers(rng, (groups * filters,))]
    arrays = arrays[: 2 + biased]
    stated = {"strides": [stride] * rank, "pads": [pad] * 2 * rank, "group": groups, "activation": activation}
    case = OP.node(["x", "w", "b"][: len(arrays)], ["y"], **stated)
    scale = 1e-6 * math.prod(arrays[1].shape[1:]) ** 0.5
    assert check(case, arrays, constant=(2,), threads=threads, apart=apart, tolerance=max(scale, 2e-5))


@pytest.mark.parametrize("threads", (1, 2))
def test_cross_correlation_of_a_tracker(threads):
    """Features of a template are the weights; other sizes of the search region, in either order."""
    model = parse("""g (float[1,24,H,W] x, float[24,1,5,5] w, float[24] b, float[8,24,1,1] p) => (y) {
        c = Conv<group = 24>(x, w, b)
        r = Relu(c)
        y = Conv(r, p)
    }""")
    compiled, rng = cpuconv.compile(model, threads=threads, strategy="heuristic"), np.random.default_rng(0)
    for height, width in ((29, 31), (7, 5), (29, 31), (12, 40)):
        feed = {"x": numbers(rng, (1, 24, height, width)), "w": numbers(rng, (24, 1, 5, 5))}
        feed |= {"b": numbers(rng, (24,)), "p": numbers(rng, (8, 24, 1, 1))}
        (y,) = compiled.run(feed).values()
        wide = {name: array.astype(np.float64) for name, array in feed.items()}
        middle = OP.reference(OP.node(["x", "w", "b"], ["y"], group=24), [wide["x"], wide["w"], wide["b"]])
        wanted = OP.reference(OP.node(["x", "w"], ["y"]), [np.maximum(middle, 0), wide["p"]])
        np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    assert "reference" not in str(compiled.explain())
