"""GridSample through its kernel: every mode, padding and size, and coordinates far outside."""

from __future__ import annotations

import itertools
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
from support.graph.lowered import check, offers, run_offer
from support.graphs import parse

LANES = current().lanes
OP = ops.TABLE["GridSample"]
MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")
FORMS = list(itertools.product(MODES, PADDINGS, (0, 1)))
CHANNELS = st.sampled_from((1, 3, LANES - 1, LANES, LANES + 1, 2 * LANES + 3))
SIZES = st.sampled_from((1, 2, 3, 7, LANES, 19))


def node(mode, padding, aligned):
    return OP.node(["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=aligned)


def compared(form, x, grid, threads=1, apart=False):
    """Compare with the reference, whose coordinates are float64: weights differ by an element's part of 2^-24."""
    (offer,) = offers(node(*form), [x, grid], threads=threads)
    made = [replace(offer, inputs=(lies, DENSE)) for lies in (DENSE, STRIDED)]
    return check(node(*form), [x, grid], made=made, threads=threads, apart=apart, tolerance=2e-5)


@given(
    st.sampled_from(FORMS), st.integers(1, 3), CHANNELS, *[st.lists(SIZES, min_size=3, max_size=3)] * 2,
    st.sampled_from((1.0, 1.5, 4.0)), st.sampled_from((1, 2)), st.booleans(), st.sampled_from((2, 2, 3)),
)  # fmt: skip
@settings(deadline=None, max_examples=120)
def test_sizes(form, images, channels, sizes, points, reach, threads, apart, axes):
    rng, sizes, points = np.random.default_rng(sum(sizes)), sizes[:axes], points[:axes]
    if axes == 3:
        sizes, points = [min(each, 7) for each in sizes], [min(each, 7) for each in points]
    grid = rng.uniform(-reach, reach, (images, *points, axes)).astype(np.float32)
    if form[0] == "nearest":  # not half between two elements, where a rounding decides
        scales = np.array(sizes[::-1])
        place = (grid + 1) / 2 * (scales - 1) if form[2] else ((grid + 1) * scales - 1) / 2
        grid = np.where(np.abs(place - np.floor(place) - 0.5) < 1e-3, np.float32(0.001), grid).astype(np.float32)
    compared(form, numbers(rng, (images, channels, *sizes)), grid, threads, apart)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_far_coordinates(form):
    rng = np.random.default_rng(0)
    x = numbers(rng, (2, 5, 6, 7))
    grid = rng.uniform(-1, 1, (2, 5, 9, 2)).astype(np.float32)
    far = np.array([-1e30, -70.3, -1.0, 1.0, 70.3, 1e30], np.float32)
    if form[1] == "reflection" or form[0] == "cubic":  # far away, a number does not tell one element from the next
        far = np.clip(far, -3, 3)
    grid[0, :2, :3] = far.reshape(2, 3, 1)
    compared(form, x, grid)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_coordinates_that_are_no_numbers_read_nothing_outside(form):
    x = numbers(np.random.default_rng(0), (1, 5, 6, 7))
    grid = np.zeros((1, 3, 11, 2), np.float32)
    grid[0, 0, :6] = np.array([[np.nan, 0], [0, np.nan], [np.inf, 0], [0, -np.inf], [np.nan, np.inf], [-np.inf] * 2])
    (offer,) = offers(node(*form), [x, grid])
    (y,) = run_offer(node(*form), [x, grid], offer)
    (clean,) = run_offer(node(*form), [x, np.where(np.isfinite(grid), grid, 0).astype(np.float32)], offer)
    assert np.array_equal(y[0, :, 0, 6:], clean[0, :, 0, 6:]) and np.array_equal(y[0, :, 1:], clean[0, :, 1:])
    if form[0] != "nearest":
        assert np.isnan(y[0, :, 0, :2]).all()


@pytest.mark.parametrize("channels", (1, 3, LANES + 1))
@pytest.mark.parametrize("last", (False, True))
def test_images_that_are_read_backwards(channels, last):
    """Strides of a reversed view are negative, and offsets from its first element too."""
    shape = (2, 6, 7, channels) if last else (2, channels, 6, 7)
    rows, columns = (1, 2) if last else (2, 3)
    moved = "x1 = Transpose<perm = [0, 3, 1, 2]>(x)" if last else "x1 = Identity(x)"
    model = parse(f"""g (float[{",".join(map(str, shape))}] x, float[2,5,9,2] grid) => (float[2,{channels},5,9] y) {{
        start = Constant<value_ints = [-1, -1]>()
        end = Constant<value_ints = [-100, -100]>()
        axes = Constant<value_ints = [2, 3]>()
        step = Constant<value_ints = [-1, -1]>()
        {moved}
        x2 = Slice(x1, start, end, axes, step)
        y = GridSample(x2, grid)
    }}""")
    rng = np.random.default_rng(0)
    x, grid = numbers(rng, shape), rng.uniform(-1.1, 1.1, (2, 5, 9, 2)).astype(np.float32)
    (y,) = cpuconv.compile(model, threads=1, strategy="heuristic").run({"x": x, "grid": grid}).values()
    reversed_ = np.flip(x, (rows, columns))
    image = np.moveaxis(reversed_, -1, 1) if last else reversed_
    wanted = OP.reference(node("linear", "zeros", 0), [image.astype(np.float64), grid.astype(np.float64)])
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def test_what_is_not_offered():
    x, grid = np.ones((1, 2, 3, 4), np.float32), np.zeros((1, 5, 6, 2), np.float32)
    assert not offers(node("linear", "zeros", 0), [x.astype(np.float64), grid])
    assert not offers(node("linear", "zeros", 0), [x, grid.astype(np.float64)])
    assert not offers(node("linear", "zeros", 0), [x[:, :0], grid])
    lines = [np.ones((1, 2, 3), np.float32), np.zeros((1, 5, 1), np.float32)]
    assert not offers(node("linear", "zeros", 0), lines)


@pytest.mark.parametrize("channels", (3, 35))
def test_many_points_on_one_and_two_threads(channels):
    """There are more vectors of points than one table holds; the results do not depend on the threads."""
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (2, channels, 20, 30)), rng.uniform(-1.1, 1.1, (2, 40, 41, 2)).astype(np.float32)]
    case = node("linear", "zeros", 0)
    (offer,) = offers(case, arrays)
    one, two = (run_offer(case, arrays, offer, threads=threads)[0] for threads in (1, 2))
    assert np.array_equal(one, two)
    wanted = OP.reference(case, [each.astype(np.float64) for each in arrays])
    np.testing.assert_allclose(one, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
