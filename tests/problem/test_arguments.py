"""Stride, padding, dilation, groups: every accepted form, and the errors of all others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.problem.arguments import padding, pair, problem_from_arguments
from cpuconv.problem.problem import ConvProblem


def pads(value, kernel=(3, 3), stride=(1, 1), dilation=(1, 1), in_hw=(8, 8)):
    return padding(value, kernel, stride, dilation, in_hw)


@pytest.mark.parametrize("value", [(2, 3), [2, 3], np.array([2, 3]), (np.int8(2), np.uint64(3))])
def test_pairs(value):
    result = pair(value, "stride")
    assert result == (2, 3) and all(type(item) is int for item in result)


def test_one_integer_is_both():
    assert pair(2, "stride") == pair(np.int64(2), "stride") == (2, 2)


@pytest.mark.parametrize("value", [True, (True, 1), 1.0, "1", None, (1, 2.0), {1, 2}, np.float32(1), np.bool_(True)])
def test_no_pair(value):
    with pytest.raises(ArgumentTypeError, match="^Argument 'stride' must be "):
        pair(value, "stride")


@pytest.mark.parametrize("value", [0, -1, (1, 0), (1,), (1, 2, 3), ()])
def test_pair_out_of_range(value):
    with pytest.raises(ArgumentError, match="^Argument 'dilation' must be "):
        pair(value, "dilation")


@pytest.mark.parametrize(
    "value, expected",
    [
        (1, (1, 1, 1, 1)),
        (np.int64(2), (2, 2, 2, 2)),
        ((1, 2), (1, 1, 2, 2)),
        ([[1, 2], (3, 4)], (1, 2, 3, 4)),
        (np.array([[1, 2], [3, 4]]).tolist(), (1, 2, 3, 4)),
        ("valid", (0, 0, 0, 0)),
        ("same", (1, 1, 1, 1)),
    ],
)
def test_padding_forms(value, expected):
    assert pads(value) == expected


@pytest.mark.parametrize(
    "name, expected",
    [("same", (0, 1, 1, 2)), ("same_upper", (0, 1, 1, 2)), ("same_lower", (1, 0, 2, 1))],
)
def test_odd_row_goes_to_the_named_side(name, expected):
    assert pads(name, kernel=(2, 4)) == expected


@given(
    st.sampled_from(["same_upper", "same_lower"]),
    st.tuples(*[st.integers(1, 7)] * 2),
    st.tuples(*[st.integers(1, 4)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(1, 20)] * 2),
)
def test_same_gives_the_ceiling_and_is_balanced(name, kernel, stride, dilation, in_hw):
    top, bottom, left, right = pads(name, kernel, stride, dilation, in_hw)
    sign = 1 if name == "same_upper" else -1
    assert sign * (bottom - top) in (0, 1) and sign * (right - left) in (0, 1)
    p = ConvProblem(1, 1, *in_hw, 1, *kernel, stride, (top, bottom, left, right), dilation)
    assert (p.oh, p.ow) == tuple(-(-size // step) for size, step in zip(in_hw, stride, strict=True))
    if stride == (1, 1) and name == "same_upper":
        assert pads("same", kernel, stride, dilation, in_hw) == (top, bottom, left, right)


@pytest.mark.parametrize(
    "value", [True, 1.5, None, (1, 2.0), ((1, 1), 1), (True, True), {"top": 1}, ((1, 1), (1, 1.0))]
)
def test_padding_of_wrong_type(value):
    with pytest.raises(ArgumentTypeError, match="^Argument 'padding' must be "):
        pads(value)


@pytest.mark.parametrize(
    "value", [-1, (0, -1), (1, 1, 1, 1), (1,), ((1, 1, 1), (1, 1)), "SAME", "full", ((0, 0), (0, -1))]
)
def test_padding_of_wrong_value(value):
    with pytest.raises(ArgumentError, match="^Argument 'padding' must be "):
        pads(value)


def test_same_needs_stride_1():
    with pytest.raises(ArgumentError, match="'same_upper' or 'same_lower' where the stride is not 1, not 'same'"):
        pads("same", stride=(1, 2))


def test_problem_from_arguments():
    p = problem_from_arguments(
        np.array([2, 8, 9, 9]), (6, 4, 3, 3), (2, 1), ((0, 1), (1, 0)), 2, np.int64(2), activation=("clip", 0, 6),
        residual=True, in_layout="NHWC", out_layout="NCHW44", threads=3,
    )  # fmt: skip
    expected = ConvProblem(
        2, 8, 9, 9, 6, 3, 3, (2, 1), (0, 1, 1, 0), (2, 2), 2, "NHWC", "NCHW4c", ("clip", 0.0, 6.0), True, 3
    )
    assert p == expected
    assert problem_from_arguments((0, 8, 9, 9), (6, 8, 3, 3)).out_shape == (0, 6, 7, 7)
