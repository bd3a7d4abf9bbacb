"""Layouts: names, shapes, strides, and conversions against the definition, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layouts
from support.strided import numbered

shapes = st.tuples(st.integers(0, 3), st.integers(1, 35), st.integers(1, 5), st.integers(1, 5))
names = st.sampled_from(layouts.NAMES)


def test_physical_shapes():
    expected = {
        "NCHW": (2, 20, 5, 7),
        "NHWC": (2, 5, 7, 20),
        "NCHW4c": (2, 5, 5, 7, 4),
        "NCHW8c": (2, 3, 5, 7, 8),
        "NCHW16c": (2, 2, 5, 7, 16),
        "NCHW32c": (2, 1, 5, 7, 32),
        "NCHW64c": (2, 1, 5, 7, 64),
    }
    assert {name: layouts.get(name).shape(2, 20, 5, 7) for name in layouts.NAMES} == expected


def test_names_and_aliases():
    assert layouts.get("NCHW44") is layouts.get("NCHW44_DOT") is layouts.get("NCHW4c")
    assert layouts.get(layouts.get("NHWC")).name == "NHWC"
    assert [layouts.blocked(lanes).name for lanes in (4, 8, 16, 32, 64)] == list(layouts.NAMES[2:])


@pytest.mark.parametrize("name", ["nchw", "CHWN", "auto", None, 16])
def test_unknown_name_lists_the_known(name):
    with pytest.raises(
        ValueError, match=r"NCHW, NHWC, NCHW4c, NCHW8c, NCHW16c, NCHW32c, NCHW64c, NCHW44, NCHW44_DOT, not "
    ):
        layouts.get(name)


@pytest.mark.parametrize("lanes", [1, 2, 128])
def test_no_such_block(lanes):
    with pytest.raises(ValueError, match="must be one of 4, 8, 16, 32, 64, not"):
        layouts.blocked(lanes)


@given(shapes, names)
def test_strides_say_where_each_element_lies(shape, name):
    logical, layout = numbered(shape), layouts.get(name)
    physical = layouts.from_nchw(logical, name)
    assert physical.shape == layout.shape(*shape) and physical.flags.c_contiguous
    at = layout.strides([stride // physical.itemsize for stride in physical.strides])
    n, c, h, w = np.indices(shape)
    offsets = n * at.n + c // at.block * at.cb + c % at.block * at.c + h * at.h + w * at.w
    assert np.array_equal(physical.ravel()[offsets], logical)


@given(shapes, names, names)
def test_convert_keeps_every_element_and_zeroes_the_tail(shape, src, dst):
    logical = numbered(shape)
    moved = layouts.convert(layouts.from_nchw(logical, src), src, dst, channels=shape[1])
    assert moved.dtype == logical.dtype
    assert np.array_equal(layouts.to_nchw(moved, dst, shape[1]), logical)
    assert np.count_nonzero(moved) == logical.size


def test_without_channels_the_tail_counts():
    blocked = layouts.from_nchw(numbered((1, 5, 2, 2)), "NCHW8c")
    assert layouts.to_nchw(blocked, "NCHW8c").shape == (1, 8, 2, 2)


@settings(max_examples=20)
@given(shapes)
def test_planar_conversion_is_a_view(shape):
    nhwc = layouts.from_nchw(numbered(shape), "NHWC")
    assert not nhwc.size or np.shares_memory(layouts.to_nchw(nhwc, "NHWC"), nhwc)


def test_errors():
    x = np.zeros((1, 2, 3, 4))
    with pytest.raises(ValueError, match="'x' must be an array of rank 5 for NCHW8c, not 4"):
        layouts.to_nchw(x, "NCHW8c")
    with pytest.raises(ValueError, match="'x' must be an array of rank 4, not 3"):
        layouts.from_nchw(x[0], "NCHW8c")
    for channels in (0, 8, 17):
        with pytest.raises(ValueError, match="'channels' must be at most 16 and end in the last block"):
            layouts.to_nchw(np.zeros((1, 2, 3, 4, 8)), "NCHW8c", channels)
    with pytest.raises(ValueError, match="'physical' must be 5 strides for NCHW8c, not 4"):
        layouts.get("NCHW8c").strides(x.strides)
