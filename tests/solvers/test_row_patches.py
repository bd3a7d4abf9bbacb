"""First layers of bfloat16 and of integers, against the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.isa import current
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import row_patches, why_not
from support import geometry, machines, typed
from support.examples import examples
from support.geometry import of, upto

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("small_work_is_shared")]
ISA = current()
TYPES = [
    "bf16:bf16:bf16",
    "bf16:bf16:f32",
    "f32:f32:bf16",
    "f16:f16:f16",
    "u8:s8:u8",
    "s8:s8:s8",
    "u8:s8:f32",
    "s8:s8:s32",
    "u8:s16:s8",
]
STEM = ConvProblem(2, 3, 21, 40, 2 * ISA.lanes + 3, 7, 7, (2, 2), (3, 3, 3, 3))


check = partial(typed.check_first, row_patches.SOLVER)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("in_layout", ["NCHW", "NHWC", "NCHW4c", "NCHW16c"])
@pytest.mark.parametrize("c", [1, 2, 3, 4, 5])
def test_channels_and_layouts(types, in_layout, c):
    problem = typed.of_types(replace(STEM, c=c, residual=True, activation="relu"), types)
    check(replace(typed.blocked(problem, types), in_layout=in_layout), 1)


@pytest.mark.parametrize("types", ["bf16:bf16:bf16", "f32:f32:bf16", "s8:s8:s8"])
@pytest.mark.parametrize("spare", [0, 1, ISA.lanes // 2 + 1])
def test_channels_of_a_whole_block(types, spare):
    """Pixels that are vectors: what they have beyond their channels is nowhere in the sums."""
    problem = typed.of_types(replace(STEM, r=3, s=3, w=20, residual=True), types)
    check(typed.blocked(replace(problem, c=ISA.block(problem.types.x) - spare), types), 1)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(
    "problem",
    [
        replace(STEM, k=1),
        replace(STEM, k=4 * ISA.lanes, h=9, w=9),
        replace(STEM, k=9 * ISA.lanes - 1, r=3, s=3, stride=(1, 1), pads=(1, 1, 1, 1)),
        replace(STEM, r=3, s=2, stride=(3, 1), pads=(0, 2, 1, 0), dilation=(2, 3)),
        replace(STEM, h=3, w=2, r=2, s=2, stride=(3, 3), pads=(7, 8, 7, 9)),
        replace(STEM, h=60, w=50, threads=2),
        replace(STEM, r=3, s=23, pads=(1, 1, 11, 11), stride=(1, 1)),
    ],
    ids=lambda problem: problem.shape_key,
)
def test_strides_padding_dilation_sizes(types, problem):
    check(typed.blocked(typed.of_types(problem, types), types))


@settings(max_examples=examples(50))
@given(
    geometry.problems(
        cg=upto(6), kg=upto(5 * ISA.lanes), in_layout=of(*layouts.NAMES), threads=of(1, 2), r=upto(5), s=upto(5)
    ),
    st.sampled_from(TYPES),
    st.integers(0, 99),
)
def test_whatever_it_claims(problem, types, seed):
    problem = typed.of_types(problem, types)
    if why_not(row_patches.SOLVER, problem, ISA) is None:
        check(problem, 1, seed)


def test_groups_and_many_channels_are_refused_in_words():
    problem = typed.blocked(replace(STEM, c=4 * ISA.lanes + 4), "u8:s8:u8")
    assert "input channels fill more than a vector" in (why_not(row_patches.SOLVER, problem, ISA) or "")
    grouped = typed.blocked(replace(STEM, c=4, k=4, groups=2), "u8:s8:u8")
    assert why_not(row_patches.SOLVER, grouped, ISA) == "there are 2 groups, not 1"


def test_rows_of_words_that_are_multiplied_two_at_a_time(monkeypatch):
    """Matrix products of ARM take two words of a row, so that segments of an odd number cannot be packed."""
    for name, types in (("smmla", "s8:s8:s8"), ("usmmla", "u8:s8:u8"), ("bfmmla", "bf16:bf16:bf16")):
        monkeypatch.setattr(row_patches.words, "product", lambda problem, isa, name=name: BY_NAME[name])
        monkeypatch.setattr(row_patches, "matrix_product_of", lambda types: None)
        for c, s in itertools.product(range(1, 5), range(1, 12)):
            problem = replace(STEM, c=c, k=9, s=s, types=Types.parse(types))
            sizes = row_patches.Sizes.of(problem, machines.NEON)
            assert sizes.run <= sizes.piece and row_patches._segment(sizes, machines.NEON) in (2, 4)
            form = row_patches.packing(problem, row_patches.Params(2, 4, 3), machines.NEON)
            weights = np.arange(1, 1 + np.prod(problem.weight_shape)).reshape(problem.weight_shape) % 101 + 1
            packed = form.pack(weights.astype(problem.types.w.dtype)).view(problem.types.w.dtype)
            assert sorted(packed[packed != 0]) == sorted(weights.ravel())
