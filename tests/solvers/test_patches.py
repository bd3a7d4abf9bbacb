"""The solver that takes every problem of bfloat16 and of integers, against the oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import patches
from support import geometry, typed
from support.examples import examples
from support.geometry import of, upto

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("small_work_is_shared")]
ISA = current()
TYPES = [
    *("bf16:bf16:bf16", "bf16:bf16:f32", "f16:f16:f16"),
    *("u8:s8:u8", "s8:s8:s8", "u8:s8:f32", "s8:s8:s32", "u8:s16:s8"),
]
BASE = ConvProblem(2, 20, 9, 11, 2 * ISA.lanes + 3, 3, 3, pads=(1, 1, 1, 1))
NAMES = ["NCHW", "NHWC", "NCHW4c", "NCHW16c", "NCHW32c", "NCHW64c"]


check = partial(typed.check_first, patches.SOLVER)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("in_layout, out_layout", [*zip(NAMES, NAMES[::-1], strict=True), ("NHWC", "NHWC")])
def test_layouts(types, in_layout, out_layout):
    problem = replace(BASE, in_layout=in_layout, out_layout=out_layout, residual=True, activation="relu")
    check(typed.of_types(problem, types), 1)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("k", [1, ISA.lanes, 4 * ISA.lanes, 5 * ISA.lanes + 1, 9 * ISA.lanes - 1])
def test_channels_around_a_block(types, k):
    check(typed.blocked(replace(BASE, k=k, c=7), types))


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("c, k, groups", [(8, 8, 4), (12, 15, 3), (6, 18, 6), (66, 2 * ISA.lanes + 2, 2)])
@pytest.mark.parametrize("blocked", [False, True])
def test_groups_that_share_blocks(types, c, k, groups, blocked):
    problem = typed.of_types(
        replace(BASE, c=c, k=k, groups=groups, residual=True, activation=("clip", -0.5, 0.7)), types
    )
    check(typed.blocked(problem, types) if blocked else replace(problem, in_layout="NHWC", out_layout="NHWC"), 1)


@settings(max_examples=examples(50))
@given(
    geometry.problems(
        groups=of(1, 2, 3), cg=upto(9), kg=upto(5 * ISA.lanes), in_layout=of(*NAMES), out_layout=of(*layouts.NAMES),
        threads=of(1, 2), r=upto(5), s=upto(5),
    ),
    st.sampled_from(TYPES),
    st.integers(0, 99),
)  # fmt: skip
def test_whatever_it_claims(problem, types, seed):
    check(typed.of_types(problem, types), 1, seed)
