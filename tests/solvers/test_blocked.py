"""Ways through a blocked convolution that must not change its result: panels in parts, tiles that read in place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import layouts
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.isa import current
from cpuconv.kernels.convolutions.convolve import PLANAR_BAND
from cpuconv.kernels.products.gemm_tile import LINE
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import direct, pointwise, winograd
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.gemm_call import Fetching
from support import oracle

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
LANES = current().lanes
BLOCKED = layouts.blocked(LANES).name
PART = 8 * LANES * LANES  # bytes of weights: a few rows of every panel here

SHAPES = [  # stride, pads, dilation, kernel, channels, kernels, groups, batch
    ((1, 1), (1, 1, 1, 1), (1, 1), (3, 3), 3 * LANES, 2 * LANES + 1, 1, 1),
    ((2, 2), (1, 0, 1, 0), (1, 1), (3, 3), 3 * LANES + 3, 4 * LANES, 1, 2),
    ((1, 2), (0, 2, 3, 1), (1, 1), (5, 4), 2 * LANES, LANES, 1, 1),
    ((1, 1), (4, 4, 4, 4), (4, 4), (3, 3), 2 * LANES, 3 * LANES, 1, 1),
    ((1, 1), (1, 1, 1, 1), (1, 1), (3, 3), 4 * LANES, 4 * LANES, 2, 2),
    ((1, 1), (0, 0, 2, 2), (1, 1), (1, 5), 2 * LANES, 2 * LANES, 1, 1),
]


@given(st.integers(1, 1024), st.integers(1, 16), st.integers(1, 200))
def test_the_tiles_of_a_block_fetch_the_next_weights_in_equal_shares(scalar, scalars, tiles):
    fetching = Fetching.shared(scalar, scalars, tiles)
    assert fetching.shares <= tiles  # all weights come before they are used
    assert fetching.shares * fetching.step >= scalar  # none is left out
    assert fetching.lines * LINE >= fetching.step
    assert fetching.shares == tiles or scalars * fetching.step <= 2 * LINE  # nor is a line asked for often


def problems(threads: int = 1, residual: bool = False) -> list[ConvProblem]:
    return [
        ConvProblem(
            n, c, 15, 62, k, r, s, stride, pads, dilation, groups, BLOCKED, BLOCKED, ("relu",), residual, threads
        )
        for stride, pads, dilation, (r, s), c, k, groups, n in SHAPES
    ]


def several(problem: ConvProblem) -> list[str]:
    names = [str(Candidate(direct.SOLVER, params)) for params in direct.candidates(problem, current())]
    return list(dict.fromkeys((names[0], names[len(names) // 2], names[-1])))


def result(problem: ConvProblem, name: str) -> bytes:
    given = oracle.operands(problem)
    return oracle.run(oracle.plan(problem, given, name), given).tobytes()


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_parts_give_the_same_bits(index, residual, monkeypatch):
    problem = problems(oracle.THREADS, residual)[index]
    names = several(problem)
    whole = [result(problem, name) for name in names]
    monkeypatch.setattr(blocked, "_PART_SHARE", PART / blocked.machine().l2)
    for name, expected in zip(names, whole, strict=True):
        step = assemble(problem, Candidate.parse(name)).steps[0]
        assert step.args["parts"] > 1 or step.args["row_tiles"] * step.args["column_tiles"] == 1
        assert result(problem, name) == expected, name
        oracle.check(problem, name)


def test_parts_of_a_pointwise_panel(monkeypatch):
    problem = ConvProblem(1, 9 * LANES, 7, 7, 5 * LANES + 2, 1, 1, in_layout=BLOCKED, out_layout=BLOCKED)
    monkeypatch.setattr(blocked, "_PART_SHARE", PART / blocked.machine().l2)
    for params in list(pointwise.candidates(problem, current()))[:3]:
        made = oracle.check(problem, str(Candidate(pointwise.SOLVER, params)))
        assert assemble(problem, Candidate.parse(made.algorithm)).steps[0].args["parts"] > 2


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_tiles_in_place_give_the_same_bits(index, monkeypatch):
    problem = problems()[index]
    names = several(problem)
    steps = [assemble(problem, Candidate.parse(name)).steps[0] for name in names]
    mixed = [result(problem, name) for name in names]
    assert any(step.args["inner_tiles"] < step.args["inner_tiles_end"] for step in steps)
    in_place = blocked._in_place
    monkeypatch.setattr(
        blocked, "_in_place", lambda *given: in_place(*given[:5], PLANAR_BAND, *given[6:])
    )  # never: everything through bands
    banded = [assemble(problem, Candidate.parse(name)).steps[0].args for name in names]
    assert all(args["inner_tiles"] == args["inner_tiles_end"] for args in banded)
    for name, expected in zip(names, mixed, strict=True):
        assert result(problem, name) == expected, name
        oracle.check(problem, name)


@pytest.mark.parametrize("channels", [1, LANES - 1, LANES, LANES + 1, 3 * LANES - 1])
def test_a_reduction_is_as_long_as_there_are_channels(channels):
    problem = ConvProblem(1, channels, 9, 9, LANES, 3, 3, pads=(1, 1, 1, 1), in_layout=BLOCKED, out_layout=BLOCKED)
    names = several(problem) + [str(Candidate(winograd.SOLVER, next(iter(winograd.candidates(problem, current())))))]
    for name in names:
        args = assemble(problem, Candidate.parse(name)).steps[0].args
        taps = 1 if name.startswith("winograd") else 9
        assert args["panel_bytes"] == channels * taps * args["tile_vectors"] * LANES * 4
        tile = args["gemm"].tile
        blocks = args["segments"] // taps
        assert (blocks - 1) * tile.unroll + (tile.tail or tile.unroll) == channels
        oracle.check(problem, name)


@pytest.mark.parametrize("height", [1, 2, 3])
def test_pixels_that_lie_apart_are_one_row(height):
    """Channels last, of several blocks: rows have as many pixels as those of the output, each a few blocks on."""
    problem = ConvProblem(1, 2 * LANES, height, 19, 2 * LANES, 1, 1, in_layout="NHWC", out_layout="NHWC")
    assert oracle.check(problem, "channels_last").algorithm.startswith("channels_last")
