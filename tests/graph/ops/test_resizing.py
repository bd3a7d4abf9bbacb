"""Planes resized by kernels, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cpuconv.elements import from_bfloat16, to_bfloat16
from cpuconv.graph import ops
from cpuconv.graph.ir import Node
from cpuconv.isa import current
from cpuconv.problem.resizing import COORDINATES, ROUNDING
from support.graph import lowered

LANES = current().lanes
KNOWN = (1, 2, 3)  # region, scales and sizes
OFFERS = {"nearest": 2, "linear": 1}  # in channel blocks; of copies, dense too
SCALES = (1 / 3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.6, 3.0)


def node(**attributes: object) -> Node:
    return ops.TABLE["Resize"].node(["x", "", "scales", "sizes"], ["y"], **attributes)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@st.composite
def resizes(draw):
    """A resize of one or two axes by scales or to sizes, with its operands."""
    rank = draw(st.integers(1, 2))
    channels = draw(st.sampled_from((1, LANES - 1, LANES, LANES + 1)))
    sizes = [draw(st.integers(1, 12)) for _ in range(rank)]
    sizes[-1] = draw(st.sampled_from((1, 3, 7, 8, 12, 16, 35)))
    x = normal(draw(st.sampled_from((1, 3))), channels, *sizes)
    attributes = {
        "mode": draw(st.sampled_from(("nearest", "linear"))),
        "coordinate_transformation_mode": draw(st.sampled_from(sorted(set(COORDINATES) - {"tf_crop_and_resize"}))),
        "nearest_mode": draw(st.sampled_from(sorted(ROUNDING))),
        "exclude_outside": draw(st.integers(0, 1)),
    }
    scales = sizes = None
    if draw(st.booleans()):
        scales = np.array([1, 1, *(draw(st.sampled_from(SCALES)) for _ in range(rank))], np.float32)
    else:
        sizes = np.array([*x.shape[:2], *(draw(st.integers(1, 25)) for _ in range(rank))])
    if draw(st.booleans()):  # the planes' axes alone
        attributes["axes"] = list(range(2, 2 + rank))
        scales, sizes = (None if array is None else array[2:] for array in (scales, sizes))
    return node(**attributes), [x, None, scales, sizes]


@settings(max_examples=120, deadline=None)
@given(resizes(), st.sampled_from((1, 2)), st.booleans())
def test_a_resize_is_the_reference(case, threads, apart):
    made, arrays = case
    values = lowered.values_of(arrays, KNOWN)
    assume(all(ops.TABLE["Resize"].infer(made, values)[0].shape))
    assert lowered.check(made, arrays, KNOWN, threads, apart) == OFFERS[made["mode"]]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_what_is_not_finite_stays_in_rows_that_are_not_resized(mode):
    x = normal(1, LANES, 4, 5)
    x[0, :, 1, 2], x[0, :, 2, 3] = np.inf, np.nan
    made = node(mode=mode, coordinate_transformation_mode="align_corners")
    for sizes in ([1, LANES, 4, 10], [1, LANES, 7, 5], [1, LANES, 4, 5]):
        assert lowered.check(made, [x, None, None, np.array(sizes)], KNOWN) == OFFERS[mode]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_bytes_are_cut_off(mode, dtype):
    ends, sizes = np.iinfo(dtype), np.array([2, 4 * LANES + 3, 9, 36])
    x = np.random.default_rng(0).integers(ends.min, ends.max, (2, 4 * LANES + 3, 5, 18), dtype, endpoint=True)
    made = node(mode=mode, coordinate_transformation_mode="align_corners")  # whose weights are halves
    assert lowered.check(made, [x, None, None, sizes - [0, 0, 0, 1]], KNOWN) == OFFERS[mode]


def test_an_enlarged_plane_needs_no_filter():
    x, scales = normal(1, LANES, 4, 5), np.array([1, 1, 2, 2], np.float32)
    assert lowered.check(node(mode="linear", antialias=1), [x, None, scales, None], KNOWN) == 1


@pytest.mark.parametrize(
    "attributes, scales, known",
    [
        ({"mode": "cubic"}, [1, 1, 2, 2], KNOWN),
        ({"mode": "linear", "antialias": 1}, [1, 1, 0.5, 0.5], KNOWN),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, [1, 1, 2, 2], KNOWN),
        ({}, [1, 2, 1, 1], KNOWN),
        ({}, [2, 1, 1, 1], KNOWN),
        ({}, [1, 1, 2, 2], ()),
    ],
    ids=["cubic", "filtered", "cropped", "channels", "images", "not known"],
)
def test_what_kernels_do_not_resize(attributes, scales, known):
    arrays = [normal(1, LANES, 4, 4), None, np.array(scales, np.float32), None]
    assert lowered.offers(node(**attributes), arrays, known) == []


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("op", "mode"), [("DepthToSpace", "DCR"), ("DepthToSpace", "CRD"), ("SpaceToDepth", "DCR"), ("SpaceToDepth", "CRD")]
)
@given(st.sampled_from((1, 3, LANES, 2 * LANES)), st.integers(1, 3), st.sampled_from((1, 3)), st.integers(1, 7))
@settings(max_examples=20)
def test_channels_and_pixels_change_places(op, mode, apart, channels, b, n, size):
    x = normal(n, channels * b * b, size, size + 1) if op == "DepthToSpace" else normal(n, channels, size * b, 2 * b)
    made = ops.TABLE[op].node(["x"], ["y"], blocksize=b, mode=mode)
    together = channels % LANES == 0 and mode != "CRD"
    assert lowered.check(made, [x], threads=2, apart=apart, tolerance=0) == 1 + together
    narrow = from_bfloat16(to_bfloat16(x)).reshape(x.shape)
    more = channels % (2 * LANES) == 0 and mode != "CRD"
    assert lowered.check(made, [narrow], apart=apart, tolerance=0, precision="bfloat16") == 1 + together + more


@pytest.mark.parametrize("channels", [LANES, 4 * LANES])
def test_bytes_of_channels_and_pixels_change_places(channels):
    x = np.random.default_rng(0).integers(0, 256, (1, 4 * channels, 3, 2), np.uint8)
    made = ops.TABLE["DepthToSpace"].node(["x"], ["y"], blocksize=2)
    assert lowered.check(made, [x]) == 1 + (channels == 4 * LANES)
