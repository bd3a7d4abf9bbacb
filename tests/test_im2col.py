"""The im2col solver against the float64 oracle: whatever the shape, the layouts and the strides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines import on

import layouts
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.micro.im2col import IN_PLACE, LINES, VECTORS
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reference import conv2d
from cpuconv.recipe import Candidate
from cpuconv.runtime import Program
from cpuconv.solvers import im2col
from cpuconv.solvers.shared.base import (
    MicroRef,
    Operand,
    Operands,
    Ref,
    Space,
    aligned,
    contiguous,
    divide,
)
from cpuconv.solvers.shared.machine import machine

ISA = current()
BLOCKED = layouts.blocked(ISA.lanes).name
quick = settings(max_examples=25, deadline=None)


def operand(name: str, array: np.ndarray, layout: str) -> Operand:
    """Where an array is."""
    return Operand(Ref(name), layouts.get(layout).strides(array.strides))


def run(problem: ConvProblem, params: im2col.Params, x, w, bias, y, residual=None) -> int:
    """Bind, run once, and give the bytes of workspace; the workspace starts as NaN."""
    space = Space()
    extra = None if residual is None else operand("residual", residual, problem.out_layout)
    views = operand("x", x, problem.in_layout), operand("y", y, problem.out_layout)
    (step,) = im2col.bind(problem, params, ISA, space, Operands(*views, extra))
    arrays = {
        "x": x,
        "y": y,
        "w": im2col.packing(problem, params, ISA).pack(w),
        "bias": np.concatenate([bias, np.zeros(64, np.float32)]),
        "workspace": aligned(divide(space.size, 4) + 16),
    }
    if residual is not None:
        arrays["residual"] = residual
    arrays["workspace"][:] = np.nan
    called = []  # code lives as long as something refers to it

    def word(value):
        if isinstance(value, Ref):
            return arrays[value.name].ctypes.data + value.offset
        if isinstance(value, MicroRef):
            called.append(value.entry())
            return called[-1].address
        return value.ctypes.data if isinstance(value, np.ndarray) else int(value)

    block = step.kernel.pack({name: word(value) for name, value in step.args.items()})
    Program([(step.compile(), block, step.parts)], problem.threads).run()
    return space.size


def sliced(x: np.ndarray) -> np.ndarray:
    """The same values as a slice of a larger array of NaN."""
    around = np.full([size + 1 for size in x.shape], np.nan, np.float32)
    inner = around[tuple(slice(size) for size in x.shape)]
    inner[...] = x
    return inner


def check(problem: ConvProblem, params: im2col.Params, slices: bool = False) -> int:
    """Random data through the solver, compared with the oracle; the output starts as NaN, its tail must be zero."""
    rng = np.random.default_rng(0)

    def draw(shape, layout):
        array = layouts.from_nchw(rng.standard_normal(shape).astype(np.float32), layout)
        return sliced(array) if slices else array

    x = draw(problem.in_shape, problem.in_layout)
    residual = draw(problem.out_shape, problem.out_layout) if problem.residual else None
    depth = problem.cg * problem.r * problem.s
    w = (rng.standard_normal(problem.weight_shape) / np.sqrt(depth)).astype(np.float32)
    bias = rng.standard_normal(problem.k).astype(np.float32)
    y = aligned(layouts.get(problem.out_layout).shape(*problem.out_shape))
    y[...] = np.nan
    size = run(problem, params, x, w, bias, y, residual)
    np.testing.assert_allclose(y, conv2d(x, w, bias, problem, residual), rtol=0, atol=2e-5)
    if problem.k % layouts.get(problem.out_layout).block:
        assert not y[:, -1, ..., problem.k % y.shape[-1] :].any()
    return size


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


def settings_of(**fields):
    """A test over problems with these fields, and over block sizes and slices."""
    return given(problems(**fields), st.sampled_from([1, 2, 1000]), st.booleans())


@quick
@settings_of()
def test_nchw(problem, block, slices):
    check(problem, im2col.Params(1, 4, block), slices)


@quick
@settings_of(in_layout="NHWC", out_layout="NHWC")
def test_nhwc(problem, block, slices):
    check(problem, im2col.Params(1, 4, block), slices)


@quick
@settings_of(in_layout=BLOCKED, out_layout=BLOCKED, activation="sigmoid")
def test_blocked_keeps_tails_zero(problem, block, slices):
    check(problem, im2col.Params(1, 4, block), slices)


@quick
@settings_of(in_layout="NCHW4c", out_layout="NCHW8c", activation=("clip", 0.5, 2.0), residual=True)
def test_other_blocks_with_residual(problem, block, slices):
    check(problem, im2col.Params(1, 4, block), slices)


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
        assert Candidate.parse(str(Candidate(im2col, params))).params == params
        cost = im2col.cost(problem, params, machine())
        assert 0 < cost.bound < cost.estimate
        check(problem, params)


def test_the_last_panel_of_a_group_overlaps_the_one_before():
    problem = ConvProblem(1, 18, 5, 5, 2 * 3 * ISA.lanes, 1, 1, groups=2)
    check(problem, im2col.Params(2, 4, 3))


def test_a_few_pixels_share_their_panels_among_threads():
    problem = ConvProblem(1, 9, 3, 3, 4 * ISA.lanes, 3, 3, threads=2)
    _, chunks = im2col._share(problem, im2col.Params(1, 1, 1), ISA)
    assert chunks == 2
    check(problem, im2col.Params(1, 1, 1))


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 9, 17, 27, 64, 121, 147, 576])
def test_reduction_steps_waste_little(depth):
    step = im2col.unroll(depth)
    assert 1 <= step <= 9 and -depth % step <= max(1, depth // 9)


def test_the_matrix_never_exists_as_a_whole():
    problem = ConvProblem(1, 64, 56, 56, 64, 3, 3, pads=(1, 1, 1, 1))
    matrix = 64 * 9 * 56 * 56 * 4
    with on(dataclasses.replace(machine(), l2=matrix // 16)):  # which is what bounds a block
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
    x = Operand(Ref("x"), contiguous(layout, problem.in_shape))
    y = Operand(Ref("y"), contiguous("NCHW", problem.out_shape))
    (step,) = im2col.bind(problem, im2col.Params(1, 4, 1), ISA, Space(), Operands(x, y))
    assert step.tile.load == load
