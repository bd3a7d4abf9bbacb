"""The im2col solver against the float64 oracle: whatever the shape, the layouts and the strides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.packing.columns import IN_PLACE, LINES, VECTORS
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import im2col
from support import oracle
from support.machines import simulating
from support.strided import sliced

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
ISA = current()
BLOCKED = layouts.blocked(ISA.lanes).name


def check(problem: ConvProblem, params: im2col.Params, slices: bool = False) -> int:
    """Compare with the oracle, perhaps on slices of larger arrays; gives the bytes of workspace."""
    made = oracle.check(problem, Candidate(im2col.SOLVER, params), view=sliced if slices else np.asarray)
    return made.workspace_bytes


@st.composite
def problems(draw, **fields) -> ConvProblem:
    """Any geometry whose reduction is a multiple of 9, so that tiles, and compilations, are few."""
    if draw(st.booleans()):
        r, s = draw(st.sampled_from([(3, 3), (1, 9), (9, 1), (3, 6)]))
        cg = draw(st.one_of(st.integers(1, 20), st.just(ISA.lanes)))
    else:
        r, s = draw(st.integers(1, 7)), draw(st.integers(1, 7))
        cg = draw(st.sampled_from([9, 18, 36]))
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kg = draw(st.one_of(st.integers(1, 35), st.sampled_from([ISA.lanes, 2 * ISA.lanes])))
    shape = draw(st.integers(1, 2)), cg * groups, draw(st.integers(1, 19)), draw(st.integers(1, 19))
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    threads = draw(st.integers(1, 2))
    try:
        problem = ConvProblem(
            *shape, kg * groups, r, s, draw(pairs), pads, draw(pairs), groups, threads=threads, **fields
        )
    except ArgumentError:
        assume(False)
    assume(problem.oh * problem.ow >= 4)
    return problem


FORMS = {
    "NCHW": {},
    "NHWC": {"in_layout": "NHWC", "out_layout": "NHWC"},
    "blocks of an activation that moves zero": {"in_layout": BLOCKED, "out_layout": BLOCKED, "activation": "sigmoid"},
    "other blocks": {"in_layout": "NCHW4c", "out_layout": "NCHW8c", "activation": ("clip", 0.5, 2.0), "residual": True},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(max_examples=25)
@given(data=st.data(), block=st.sampled_from([1, 2, 1000]), slices=st.booleans())
def test_any_geometry(form, data, block, slices):
    check(data.draw(problems(**form)), im2col.Params(1, 4, block), slices)


@pytest.mark.parametrize(
    ("in_layout", "out_layout"), list(zip(layouts.NAMES, layouts.NAMES[2:] + layouts.NAMES[:2], strict=True))
)
def test_mixed_layouts_with_residual(in_layout, out_layout):
    problem = ConvProblem(
        2, 2 * ISA.lanes + 5, 6, 9, 20, 3, 3, (1, 2), (1, 0, 2, 1), in_layout=in_layout, out_layout=out_layout,
        activation="relu", residual=True,
    )  # fmt: skip
    check(problem, im2col.Params(1, 4, 2))


@pytest.mark.parametrize("text", ["ic17ih9oc40kh1", "g5ic5ih7oc10kh3ph1", "ic3ih12oc70kh7ph3sh2", "ic1ih1oc1kh1"])
def test_candidates(text):
    problem = ConvProblem.parse(text)
    for params in list(im2col.candidates(problem, ISA))[::2][:2]:
        assert Candidate.parse(str(Candidate(im2col.SOLVER, params))).params == params
        cost = im2col.cost(problem, params, machine())
        assert 0 < cost.bound < cost.estimate
        check(problem, params)


def test_the_last_panel_of_a_group_overlaps_the_one_before():
    problem = ConvProblem(1, 18, 5, 5, 2 * 3 * ISA.lanes, 1, 1, groups=2)
    check(problem, im2col.Params(2, 4, 3))


def test_a_few_pixels_share_their_panels_among_threads():
    problem = ConvProblem(1, 9, 3, 3, 4 * ISA.lanes, 3, 3, threads=2)
    (step,) = assemble(problem, Candidate(im2col.SOLVER, im2col.Params(1, 1, 1))).steps
    assert step.args["chunks"] == 2
    check(problem, im2col.Params(1, 1, 1))


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 9, 17, 27, 64, 121, 147, 576])
def test_reduction_steps_waste_little(depth):
    step = im2col.unroll(depth)
    assert 1 <= step <= 9 and -depth % step <= max(1, depth // 9)


def test_the_matrix_never_exists_as_a_whole():
    problem = ConvProblem(1, 64, 56, 56, 64, 3, 3, pads=(1, 1, 1, 1))
    matrix = 64 * 9 * 56 * 56 * 4
    with simulating(dataclasses.replace(machine(), l2=matrix // 16)):  # which is what bounds a block
        params = next(iter(im2col.candidates(problem, ISA)))
    assert check(problem, params) < matrix / 4


@pytest.mark.parametrize(
    ("text", "layout", "load"),
    [
        ("ic16ih8oc16kh1", "NCHW", IN_PLACE),
        ("ic16ih8oc16kh1sh2", "NCHW", LINES),
        ("ic17ih8oc16kh1", "NCHW", LINES),  # 17 is no multiple of a reduction step
        ("ic32ih8oc16kh3", "NHWC", VECTORS),
        ("ic32ih8oc16kh3", BLOCKED, VECTORS),
        ("ic3ih8oc16kh3", "NHWC", LINES),
        ("g2ic36ih8oc16kh3", BLOCKED, LINES),  # groups share blocks
    ],
)
def test_how_columns_come_about(text, layout, load):
    problem = dataclasses.replace(ConvProblem.parse(text), in_layout=layout)
    (step,) = assemble(problem, Candidate(im2col.SOLVER, im2col.Params(1, 4, 1))).steps
    assert step.tile.load == load
