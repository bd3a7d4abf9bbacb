"""Depthwise convolution of floats of 16 bits and of bytes in channel blocks, against the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import depthwise, depthwise_taps, why_not
from cpuconv.solvers.shared.solver import Solver
from support import geometry, typed
from support.geometry import of, upto

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("small_work_is_shared")]
ISA = current()
FLOATS = ["bf16:bf16:bf16", "bf16:bf16:f32", "f16:f16:f16"]
INTEGERS = ["u8:s8:u8", "s8:s8:s8", "u8:s8:f32", "s8:s8:s32", "u8:s16:s8"]
TAKEN = [(depthwise.SOLVER, types) for types in FLOATS + INTEGERS] + [
    (depthwise_taps.SOLVER, types) for types in INTEGERS
]
EACH = pytest.mark.parametrize("solver, types", TAKEN, ids=lambda each: getattr(each, "name", each))
BASE = ConvProblem(2, 9, 9, 11, 9, 3, 3, pads=(1, 1, 1, 1), groups=9)


def of_channels(count: int, **fields: object) -> ConvProblem:
    return replace(BASE, c=count, k=count, groups=count, **fields)


def check(solver: Solver, problem: ConvProblem, most: int = 4, seed: int = 0) -> None:
    assert why_not(solver, problem, ISA) is None
    for params in itertools.islice(solver.candidates(problem, ISA), most):
        typed.check(problem, Candidate(solver, params), seed)


@EACH
@pytest.mark.parametrize("channels", [1, ISA.lanes - 1, 2 * ISA.lanes, 4 * ISA.lanes, 4 * ISA.lanes + 1, 9 * ISA.lanes])
def test_channels_around_a_block(solver, types, channels):
    check(solver, typed.blocked(of_channels(channels), types), 2)


@EACH
@pytest.mark.parametrize(
    "problem",
    [
        of_channels(9, stride=(2, 2)),
        of_channels(9, r=5, s=5, pads=(2, 2, 2, 2), residual=True, activation="silu"),
        of_channels(9, r=7, s=7, pads=(3, 3, 3, 3), activation="relu"),
        of_channels(9, r=2, s=3, pads=(0, 1, 2, 0), dilation=(2, 2)),
        of_channels(40, h=30, w=30, threads=2, activation=("clip", -0.5, 0.7)),
        of_channels(9, h=3, w=2, r=2, s=2, stride=(3, 3), pads=(7, 8, 7, 9)),
    ],
    ids=lambda problem: problem.shape_key,
)
def test_strides_padding_dilation_endings(solver, types, problem):
    if types.endswith("s32"):
        problem = replace(problem, activation=None, residual=False)
    check(solver, typed.blocked(problem, types))


@given(
    geometry.problems(
        groups=of(3, ISA.lanes, 4 * ISA.lanes + 3), cg=of(1), kg=None, r=upto(7), s=upto(7), threads=of(1, 2)
    ),
    st.sampled_from(INTEGERS),
    st.integers(0, 99),
)
@pytest.mark.parametrize("solver", [depthwise.SOLVER, depthwise_taps.SOLVER], ids=lambda solver: solver.name)
def test_integers_are_exact_whatever_it_claims(solver, problem, types, seed):
    if types.endswith("s32"):
        problem = replace(problem, activation=None, residual=False)
    problem = replace(problem, types=Types.parse(types))
    if why_not(solver, problem, ISA) is None:
        check(solver, problem, 1, seed)


def test_sums_that_floats_do_not_hold_are_refused_in_words():
    large = typed.blocked(of_channels(9, h=40, w=40, r=23, s=23, pads=(0, 0, 0, 0)), "u8:s8:s32")
    assert why_not(depthwise.SOLVER, large, ISA) == "sums of 23x23 products of u8 and s8 exceed floats"
    assert why_not(depthwise.SOLVER, replace(large, r=22, s=23), ISA) is None
    check(depthwise.SOLVER, replace(large, r=22, s=23), 1)
    check(depthwise_taps.SOLVER, large, 1)  # sums of int32


@pytest.mark.parametrize("solver", [depthwise.SOLVER, depthwise_taps.SOLVER], ids=lambda solver: solver.name)
def test_windows_wider_than_the_input_meet_padding_at_both_ends(solver):
    check(solver, typed.blocked(of_channels(9, h=4, w=40, r=1, s=80, pads=(0, 0, 40, 40)), "u8:s8:u8"))
