"""Depthwise and grouped convolution: every tile, in place and through bands, against the oracle."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import layouts
from cpuconv.conv.recipe import Candidate
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.kernels.windows.edges import Edges
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import depthwise, grouped
from cpuconv.solvers.shared.lanes import lane_tiles, lanewise
from support import oracle
from support.machines import AVX2

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
ISA = current()
BLOCKED = layouts.blocked(ISA.lanes).name
small = st.integers(1, 3)


@pytest.mark.parametrize("layout", [BLOCKED, "NCHW", "NHWC"])
@pytest.mark.parametrize("r, s, pads", [(31, 31, (15, 15, 15, 15)), (1, 65, (0, 0, 32, 32)), (65, 1, (32, 32, 0, 0))])
def test_kernels_far_larger_than_the_registers(layout, r, s, pads):
    problem = ConvProblem(1, 17, 20, 20, 17, r, s, pads=pads, groups=17, in_layout=layout, out_layout=BLOCKED)
    oracle.check(problem, "depthwise")


def test_outputs_over_padding_alone():
    problem = ConvProblem(
        2, 5, 3, 2, 5, 2, 2, (3, 3), (7, 8, 7, 9), groups=5, in_layout=BLOCKED, out_layout=BLOCKED, residual=True
    )
    for params in depthwise.candidates(problem, ISA):
        oracle.check(problem, Candidate(depthwise.SOLVER, params))


@given(st.integers(1, 40), st.integers(1, 9), small, small, st.integers(0, 9), st.integers(0, 9), st.integers(1, 16))
def test_columns_beyond_the_input_are_at_the_ends_of_a_window(w, s, stride, dilation, left, right, cols):
    try:
        problem = ConvProblem(1, 4, 1, w, 4, 1, s, (1, stride), (0, 0, left, right), (1, dilation), groups=4)
    except ArgumentError:
        assume(False)
        raise
    assume(cols <= problem.ow)
    edges, wide = Edges.of(problem, cols), lane_tiles.window(problem, 1, cols)[1]
    ends = {*range(min(edges.left, wide)), *range(max(0, wide - edges.right), wide)}
    for tile in range(-(-problem.ow // cols)):
        first = min(tile * cols, problem.ow - cols) * stride - left
        beyond = {column for column in range(wide) if not 0 <= first + column < w}
        assert beyond <= ends
        if edges.all_outside:
            assert beyond == ends == {*range(wide)} - {*edges.inner_columns(wide)}


@pytest.mark.parametrize("cg, kg, reason", [(1, 2, "1 input"), (2, 2, "groups are of 2"), (16, 16, "groups are of 16")])
def test_depthwise_refuses(cg, kg, reason):
    problem = ConvProblem(1, 3 * cg, 5, 5, 3 * kg, 3, 3, groups=3)
    assert reason in depthwise.applicable(problem, ISA)


@pytest.mark.parametrize(
    "cg, kg, reason", [(1, 1, "depthwise"), (2, 4, "but 4 output"), (3, 3, "evenly"), (16, 16, "evenly")]
)
def test_grouped_refuses(cg, kg, reason):
    problem = ConvProblem(1, 3 * cg, 5, 5, 3 * kg, 3, 3, groups=3)
    assert reason in grouped.applicable(problem, ISA)


def test_blocked_input_is_read_in_place():
    problem = ConvProblem(1, 40, 14, 14, 40, 3, 3, pads=(1, 1, 1, 1), groups=40, in_layout=BLOCKED, out_layout=BLOCKED)
    assert all(params.block == 0 for params in depthwise.candidates(problem, ISA))
    assert oracle.check(problem, "depthwise").workspace_bytes == 0


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_other_input_is_packed_band_by_band(layout):
    problem = ConvProblem(1, 40, 60, 60, 40, 3, 3, pads=(1, 1, 1, 1), groups=40, in_layout=layout, out_layout=BLOCKED)
    for params in depthwise.candidates(problem, ISA):
        assert params.block > 0 and depthwise.layouts(problem, params, ISA) == (None, BLOCKED)
    assert oracle.check(problem, "depthwise").workspace_bytes < problem.in_bytes


def test_a_small_plane_takes_one_call():
    """A call costs as much as the FMAs of a row: with 16 registers a plane of 7x7 is one tile high."""
    problem = ConvProblem(
        1, 960, 7, 7, 960, 3, 3, pads=(1, 1, 1, 1), groups=960, in_layout="NCHW8c", out_layout="NCHW8c"
    )
    best = next(lanewise.shapes(problem, AVX2, 1, 1))
    assert best.rows == problem.oh
