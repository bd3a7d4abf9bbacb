"""RoiAlign through its kernel: modes, coordinates, samples, channels, and regions outside of the image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.graph import ops
from cpuconv.isa import current
from support.graph.draws import numbers
from support.graph.lowered import check, offers, run_offer, small_work_is_shared  # noqa: F401
from support.graphs import one_node

LANES = current().lanes
OP = ops.TABLE["RoiAlign"]


def node(**stated):
    return OP.node(["x", "rois", "images"], ["y"], **stated)


def drawn(rng, regions, size):
    """Regions of up to `size`, some of which are outside, empty or reversed."""
    return (rng.uniform(-0.3, 1.2, (regions, 4)) * size + [0, 0, size / 3, size / 3]).astype(np.float32)


@given(
    st.sampled_from(("avg", "max")), st.sampled_from(("half_pixel", "output_half_pixel")), st.sampled_from((0, 1, 3)),
    st.sampled_from((1, 3, LANES, LANES + 1, 6 * LANES + 2)), *[st.sampled_from((1, 2, 5, 7))] * 2,
    *[st.integers(1, 20)] * 2, st.integers(1, 4), st.sampled_from((1, 2)), st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_sizes(mode, moved, ratio, channels, rows, columns, height, width, regions, threads, apart):
    rng = np.random.default_rng(height + width)
    arrays = [numbers(rng, (3, channels, height, width)), drawn(rng, regions, 40), rng.integers(0, 3, regions)]
    stated = {"output_height": rows, "output_width": columns, "sampling_ratio": ratio, "spatial_scale": 0.5}
    case = node(mode=mode, coordinate_transformation_mode=moved, **stated)
    assert check(case, arrays, threads=threads, apart=apart, tolerance=1e-4) == 3


@pytest.mark.parametrize("mode", ("avg", "max"))
def test_regions_that_are_not_finite_and_images_that_do_not_exist(mode):
    """Nothing outside of the operands is read."""
    x = numbers(np.random.default_rng(0), (2, LANES + 3, 6, 7))
    rois = np.full((8, 4), [0, 0, 5, 5], np.float32)
    rois[:3] = [[np.nan, 0, 1, 1], [0, 0, np.inf, 1], [-1e30, 0, 1e30, 9]]
    rois[3:6] = [[1e9] * 4, [-1e9] * 4, [9, 9, 0, 0]]
    images = np.array([0, 1, 1, 0, 1, 0, -7, 10**12])
    case = node(mode=mode, output_height=2, output_width=3)
    for offer in offers(case, [x, rois, images]):
        (y,) = run_offer(case, [x, rois, images], offer)
        assert not y[:2].any() and not y[3:5].any()
        near = np.array([0, 1, 1, 0, 1, 0, 0, 1])
        (clean,) = run_offer(case, [x, rois, near], offer)
        assert np.array_equal(y, clean)


def test_number_of_regions_that_is_known_late():
    rng = np.random.default_rng(0)
    x = numbers(rng, (2, 5, 9, 9))
    model, _ = one_node("RoiAlign", [x, drawn(rng, 3, 9), np.array([0, 1, 1])], 1, 16, output_height=2, output_width=2)
    for value in model.graph.input[1:]:
        value.type.tensor_type.shape.dim[0].dim_param = "R"
    compiled = cpuconv.compile(model, threads=1, strategy="heuristic")
    for count in (3, 1, 17, 3):
        rois, images = drawn(rng, count, 9), rng.integers(0, 2, count)
        (y,) = compiled.run({"x0": x, "x1": rois, "x2": images}).values()
        wanted = OP.reference(node(output_height=2, output_width=2), [x.astype(np.float64), rois, images])
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-4)
