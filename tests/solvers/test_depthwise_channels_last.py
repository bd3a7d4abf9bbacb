"""Depthwise convolution of pixels whose channels are adjacent: the same numbers as in channel blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.elements import BF16, F32, S8, S32, U8
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.solvers.depthwise import SOLVER
from support import oracle

LANES = current().lanes
BF16_ALL = Types(BF16, BF16, F32, BF16)


def problem(channels: int, height: int, width: int, kernel: int, **fields: object) -> ConvProblem:
    given = {"pads": (kernel // 2,) * 4, "in_layout": "NHWC", "out_layout": "NHWC", "groups": channels} | fields
    return ConvProblem(2, channels, height, width, channels, kernel, kernel, **given)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from((1, 2, 3)),
    st.sampled_from(((9, 11), (1, 1), (5, 40), (16, 16))),
    st.sampled_from((1, 3, 5)),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 2)),
    st.booleans(),
    st.sampled_from((None, ("gelu",))),
    st.sampled_from((1, 2)),
    st.sampled_from((ALL_F32, BF16_ALL, Types(BF16, BF16, F32, F32))),
)
def test_sizes(vectors, plane, kernel, stride, dilation, residual, activation, threads, types):
    channels = vectors * 2 * LANES
    made = problem(
        channels, *plane, kernel, stride=(stride, stride), dilation=(dilation, dilation),
        pads=(kernel // 2 * dilation,) * 4, residual=residual, activation=activation, threads=threads, types=types,
    )  # fmt: skip
    assert SOLVER.layouts(made, None, current()) == ("NHWC", "NHWC")
    oracle.check(made, "depthwise")


@pytest.mark.parametrize("channels", (LANES + 1, 3))
def test_channels_that_fill_no_vectors_are_reordered(channels):
    made = problem(channels, 9, 11, 3)
    assert SOLVER.layouts(made, None, current()) != ("NHWC", "NHWC")
    oracle.check(made, "depthwise")


def test_other_layouts_and_integers_stay_in_blocks():
    made = problem(4 * LANES, 9, 11, 3)
    for other in (
        replace(made, in_layout="NCHW"),
        replace(made, out_layout="NCHW"),
        replace(made, types=Types(U8, S8, S32, U8)),
    ):
        assert SOLVER.layouts(other, None, current()) != ("NHWC", "NHWC")
    assert SOLVER.layouts(made, None, replace(current(), closed=True)) != ("NHWC", "NHWC")


def test_planes_whose_rows_are_pages_apart_have_low_tiles():
    """Rows of a tile in one set of L1 would evict each other before the next tile reads them again."""
    made = problem(1024 // LANES * LANES, 64, 64, 3)
    assert max(params.rows for params in SOLVER.candidates(made, current())) <= 8
    assert np.prod(made.in_shape) > 0
