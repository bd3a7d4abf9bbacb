"""Depthwise and grouped convolution: every tile, in place and through bands, against the oracle."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

import layouts
from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import depthwise, grouped
from support import oracle

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
        oracle.check(problem, Candidate(depthwise, params))


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
