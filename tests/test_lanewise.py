"""Depthwise and grouped convolution: every tile, in place and through bands, against the oracle."""

from __future__ import annotations

import oracle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import Candidate
from cpuconv.solvers import depthwise, grouped
from cpuconv.solvers.shared import lanewise
from cpuconv.solvers.shared.machine import machine

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
ISA = current()
BLOCKED = layouts.blocked(ISA.lanes).name
GROUPS = [size for size in (2, 4, 8) if size < ISA.lanes]
small = st.integers(1, 3)
pad = st.integers(0, 3)


@st.composite
def problems(draw, channels: st.SearchStrategy[int]) -> ConvProblem:
    """A problem with groups of `channels`."""
    size = draw(channels)
    groups = draw(st.integers(1, max(1, 70 // size)))
    sizes = {
        "n": draw(small),
        "h": draw(st.integers(1, 20)),
        "w": draw(st.integers(1, 20)),
        "r": draw(st.integers(1, 7)),
        "s": draw(st.integers(1, 7)),
        "stride": (draw(small), draw(small)),
        "pads": tuple(draw(pad) for _ in range(4)),
        "dilation": (draw(small), draw(small)),
        "in_layout": draw(st.sampled_from([BLOCKED, BLOCKED, "NCHW", "NHWC", "NCHW4c", "NCHW8c"])),
        "out_layout": draw(st.sampled_from([BLOCKED, BLOCKED, "NCHW"])),
        "activation": draw(st.sampled_from([None, "relu", ("clip", -3.0, 3.0)])),
        "residual": draw(st.booleans()),
        "threads": draw(st.sampled_from([1, oracle.THREADS])),
    }
    try:
        return ConvProblem(c=groups * size, k=groups * size, groups=groups, **sizes)
    except ArgumentError:
        assume(False)
        raise


def check(solver, problem: ConvProblem, position: int) -> None:
    """One of the candidates, by position."""
    assert solver.applicable(problem, ISA) is None
    found = list(solver.candidates(problem, ISA))
    assert found and len(set(found)) == len(found)
    params = found[position % len(found)]
    cost = solver.cost(problem, params, machine())
    assert 0 < cost.bound <= cost.estimate
    oracle.check(problem, str(Candidate(solver, params)), seed=position)


@settings(max_examples=25)
@given(problems(st.just(1)), st.integers(0, 11))
def test_depthwise(problem, position):
    check(depthwise, problem, position)


@pytest.mark.skipif(not GROUPS, reason="no group is smaller than a vector")
@settings(max_examples=15)
@given(problems(st.sampled_from(GROUPS or [1])), st.integers(0, 7))
def test_grouped(problem, position):
    check(grouped, problem, position)


@pytest.mark.parametrize("layout", [BLOCKED, "NCHW", "NHWC"])
@pytest.mark.parametrize("r, s, pads", [(31, 31, (15, 15, 15, 15)), (1, 65, (0, 0, 32, 32)), (65, 1, (32, 32, 0, 0))])
def test_kernels_far_larger_than_the_registers(layout, r, s, pads):
    problem = ConvProblem(1, 17, 20, 20, 17, r, s, pads=pads, groups=17, in_layout=layout, out_layout=BLOCKED)
    check(depthwise, problem, 0)


def test_outputs_over_padding_alone():
    problem = ConvProblem(
        2, 5, 3, 2, 5, 2, 2, (3, 3), (7, 8, 7, 9), groups=5, in_layout=BLOCKED, out_layout=BLOCKED, residual=True
    )
    for position in range(len(list(depthwise.candidates(problem, ISA)))):
        check(depthwise, problem, position)


@given(st.integers(1, 40), st.integers(1, 9), small, small, st.integers(0, 9), st.integers(0, 9), st.integers(1, 16))
def test_tiles_in_place_cover_a_row_and_meet_padding_at_its_ends_only(w, s, stride, dilation, left, right, cols):
    try:
        problem = ConvProblem(1, 4, 1, w, 4, 1, s, (1, stride), (0, 0, left, right), (1, dilation), groups=4)
    except ArgumentError:
        assume(False)
        raise
    assume(cols <= problem.ow)
    across = lanewise.columns(problem, cols, in_place=True)
    assume(across is not None)
    wide = lanewise.window(problem, 1, cols)[1]
    covered: set[int] = set()
    for tile in range(across.count):
        start, part = min(max(tile * cols, across.low), across.high), across.inner
        if tile == 0 and across.left != across.inner:
            start, part = 0, across.left
        elif tile == across.count - 1 and across.right != across.inner:
            start, part = problem.ow - cols, across.right
        covered.update(range(start, start + cols))
        first = start * stride - problem.pads[2]
        exist = [column for column in range(wide) if 0 <= first + column < w]
        assert exist == list(range(*part))
    assert covered == set(range(problem.ow))


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
