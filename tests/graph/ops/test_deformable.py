"""Deformable convolution and multi-scale deformable attention through their kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.graph import ops
from cpuconv.isa import current
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED
from support.graph.draws import numbers
from support.graph.lowered import check, offers, run_offer, small_work_is_shared  # noqa: F401
from support.graphs import one_node, runtime_session

LANES = current().lanes
COLUMNS, ATTENTION = ops.TABLE["DeformableIm2col"], ops.TABLE["MultiScaleDeformableAttention"]
GROUPS = st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 4)))
"""Groups of weights and of offsets."""


def outputs(size, kernel, stride, dilation, pads):
    return (size + sum(pads) - (kernel - 1) * dilation - 1) // stride + 1


@st.composite
def deformed(draw):
    """Operands and attributes of a deformable convolution, without the weights: input, offsets and mask."""
    group, offset_group = draw(GROUPS)
    channels = LANES * draw(st.sampled_from((1, 3))) * math.lcm(group, offset_group)
    kernel, strides, dilations = ([draw(st.integers(1, 3)) for _ in range(2)] for _ in range(3))
    near, far = ([draw(st.integers(0, 2)) for _ in range(2)] for _ in range(2))
    sizes = [draw(st.sampled_from((7, 9, LANES + 3))) for _ in range(2)]
    pads = zip(near, far, strict=True)
    planes = [outputs(*each) for each in zip(sizes, kernel, strides, dilations, pads, strict=True)]
    rng, n, count = (
        np.random.default_rng(draw(st.integers(0, 99))),
        draw(st.integers(1, 2)),
        offset_group * math.prod(kernel),
    )
    x = numbers(rng, (n, channels, *sizes))
    arrays = [x, numbers(rng, (n, 2 * count, *planes)), numbers(rng, (n, count, *planes))][: draw(st.integers(2, 3))]
    stated = {"group": group, "offset_group": offset_group, "kernel_shape": kernel, "strides": strides}
    return arrays, {**stated, "dilations": dilations, "pads": [*near, *far]}


@given(deformed(), st.sampled_from((1, 2)), st.booleans())
@settings(deadline=None, max_examples=60)
def test_columns(case, threads, apart):
    arrays, stated = case
    node = COLUMNS.node(["x", "offset", "mask"][: len(arrays)], ["y"], **stated)
    assert check(node, arrays, threads=threads, apart=apart, tolerance=2e-5) == 1


@given(
    st.integers(1, 3), st.sampled_from((1, 3, 2 * LANES, LANES + 1)), st.sampled_from((1, 2)), st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from((1, 4, LANES + 1)), *[st.integers(1, 9)] * 2), min_size=1, max_size=4),
    st.sampled_from((1, 2)), st.booleans(), st.integers(0, 1),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_attention(images, channels, heads, queries, levels, threads, apart, aligned):
    rng, items = np.random.default_rng(queries), images * heads
    arrays = [numbers(rng, (items, 1, queries, sum(points for points, _, _ in levels)))]
    for points, height, width in levels:
        grid = rng.uniform(-1.3, 1.3, (items, queries, points, 2)).astype(np.float32)
        arrays += [numbers(rng, (items, channels, height, width)), grid]
    names = [f"x{number}" for number in range(len(arrays))]
    node = ATTENTION.node(names, ["y"], heads=heads, align_corners=aligned)
    (offer,) = offers(node, arrays, threads=threads)
    made = [replace(offer, inputs=(form,) * len(arrays)) for form in (DENSE, STRIDED)]
    assert check(node, arrays, made=made, threads=threads, apart=apart, tolerance=2e-5) == 2


def test_results_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (1, 2 * LANES, 20, 31)), numbers(rng, (1, 18, 20, 31)), numbers(rng, (1, 9, 20, 31))]
    node = COLUMNS.node(["x", "offset", "mask"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)
    (offer,) = offers(node, arrays)
    one, two = (run_offer(node, arrays, offer, threads=threads)[0] for threads in (1, 2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("groups", ((1, 1), (2, 1), (1, 4), (4, 2)), ids=str)
@pytest.mark.parametrize("channels", (4, 32))
def test_networks(groups, channels):
    """A convolution whose channels are padded, or not, against ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    rng, (group, offset_group) = np.random.default_rng(0), groups
    arrays = [
        numbers(rng, (2, channels, 9, 20)), numbers(rng, (8, channels // group, 3, 2)),
        numbers(rng, (2, offset_group * 12, 5, 21)), numbers(rng, (8,)), numbers(rng, (2, offset_group * 6, 5, 21)),
    ]  # fmt: skip
    stated = {"group": group, "offset_group": offset_group, "strides": [2, 1], "pads": [1] * 4}
    model, feed = one_node("DeformConv", arrays, 1, 19, fixed=(1, 3), **stated)
    compiled = cpuconv.compile(model, threads=1, strategy="heuristic")
    (y,) = compiled.run(feed).values()
    (wanted,) = runtime_session(runtime, model).run(None, feed)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_open_sizes(dtype):
    """Sizes in either order, and other types."""
    rng, sizes = np.random.default_rng(0), ((9, 9), (3, 20), (33, 17), (9, 9))
    made = [[numbers(rng, (1, 20, *each)), numbers(rng, (1, 18, *each)), numbers(rng, (1, 9, *each))] for each in sizes]
    w, bias = numbers(rng, (4, 20, 3, 3)).astype(dtype), numbers(rng, (4,)).astype(dtype)
    x, offset, mask = (each.astype(dtype) for each in made[0])
    model, _ = one_node("DeformConv", [x, w, offset, bias, mask], 1, 22, fixed=(1, 3), pads=[1] * 4)
    for value in model.graph.input:
        for axis, name in ((2, "H"), (3, "W")):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    compiled = cpuconv.compile(model, threads=2, strategy="heuristic")
    op = ops.TABLE["DeformConv"]
    for arrays in made:
        x, offset, mask = (each.astype(dtype) for each in arrays)
        (y,) = compiled.run({"x0": x, "x2": offset, "x4": mask}).values()
        wide = [each.astype(np.float64) for each in (x, w, offset, bias, mask)]
        wanted = op.reference(op.node(["x", "w", "o", "b", "m"], ["y"], pads=[1] * 4), wide)
        tolerance = 1e-3 if dtype == np.float16 else 2e-5
        assert y.dtype == dtype
        np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
