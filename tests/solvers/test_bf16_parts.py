"""float32 in bfloat16 parts between convolutions: equal bits to splitting apart, copies, and networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.choice.target import Target
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F32, IN_PARTS, Element, join_parts, split_to_parts
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.tensor_view import BLOCKED, NARROW
from cpuconv.kernels.emit.product import SPLIT
from cpuconv.network.selection import planning
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import split_bf16, why_not
from cpuconv.tuning.random_operands import random_operands
from cpuconv.tuning.trial import Shared
from support import oracle
from support.guarded import END, place

ISA = current()
PLANE = ConvProblem(1, 64, 6, 9, 32, 3, 3, pads=(1, 1, 1, 1), in_layout="NCHW16c", out_layout="NCHW16c")
pytestmark = pytest.mark.skipif(split_bf16.applicable(PLANE, ISA) is not None, reason="multiplies bfloat16 on AMX")
IN_BLOCKS = "NCHW32c"


def in_parts(problem: ConvProblem, x: Element, y: Element) -> ConvProblem:
    """The problem with an input and an output of these types."""
    ends = {"in_layout": IN_BLOCKS} if x.parts > 1 else {}
    ends |= {"out_layout": IN_BLOCKS} if y.parts > 1 else {}
    return replace(problem, types=Types(x, F32, F32, y), **ends)


def split(array: np.ndarray, layout: str, channels: int, element: Element) -> np.ndarray:
    """An activation in parts, which ends at memory that nobody may touch."""
    logical = layouts.to_nchw(array, layout, channels)
    return place(split_to_parts(layouts.from_nchw(logical, IN_BLOCKS), element), END)


def by(problem: ConvProblem, products: int, at: int, given: oracle.Operands) -> np.ndarray:
    """The output by a candidate of so many products."""
    found = [each for each in split_bf16.candidates(problem, ISA) if each.products == products]
    least = split_bf16.bound(problem, machine())
    assert 0 < least <= min(split_bf16.cost(problem, each, machine()).estimate for each in found)
    candidate = Candidate(split_bf16.SOLVER, found[at])
    packed = candidate.packing(problem).pack(given.w)
    made = Plan(problem, Choice(candidate, "named"), Limits("fast"), packed, given.bias, oracle.Spoilt())
    return made(given.x, residual=given.residual)


PROBLEMS = (
    replace(PLANE, c=41, k=37, stride=(2, 1), pads=(2, 1, 0, 2), dilation=(1, 2), activation="relu", residual=True),
    replace(PLANE, n=2, c=96, k=96, r=1, s=1, pads=(0, 0, 0, 0), residual=True, threads=oracle.THREADS),
    replace(PLANE, w=40, s=5, pads=(0, 9, 9, 0), stride=(3, 2), activation="silu", threads=oracle.THREADS),
    replace(PLANE, c=128, k=64, r=1, s=1, stride=(2, 2), pads=(0, 0, 0, 0), groups=2),
)


@pytest.mark.parametrize(
    ("problem", "products"),
    [*((problem, 3) for problem in PROBLEMS), (PROBLEMS[0], 6)],
    ids=["odd", "1x1", "wide", "strided", "odd, three parts"],
)
def test_equal_bits_to_splitting_apart(problem, products):
    """An input in parts gives the bits of one that is split, NaN and infinities too; outputs are the parts of these."""
    element = IN_PARTS[SPLIT[products].parts]
    given = oracle.operands(problem)
    given.x.reshape(-1)[[7, 70, 300]] = np.nan, np.inf, -np.inf
    added = given.residual
    if added is not None:  # what parts hold of it
        added = split(given.residual, problem.out_layout, problem.k, element)
        logical = layouts.to_nchw(join_parts(added), IN_BLOCKS, problem.k)
        given = replace(given, residual=layouts.from_nchw(logical, problem.out_layout))
    expected = by(problem, products, 0, given)
    whole = layouts.from_nchw(layouts.to_nchw(expected, problem.out_layout, problem.k), IN_BLOCKS)
    x = split(given.x, problem.in_layout, problem.c, element)
    for at, ends in ((0, (element, F32)), (-1, (element, element)), (0, (F32, element))):
        typed = in_parts(problem, *ends)
        operands = replace(given, x=x if ends[0] == element else given.x, residual=given.residual)
        if ends[1] == element:
            operands = replace(operands, residual=added)
        y = by(typed, products, at, operands)
        if ends[1] == F32:
            np.testing.assert_array_equal(y, expected)
        else:
            np.testing.assert_array_equal(join_parts(y), join_parts(split_to_parts(whole, element)))


def test_only_solvers_of_parts():
    for x, y in ((IN_PARTS[2], F32), (F32, IN_PARTS[3])):
        able = [each for each in cpuconv.solvers.TABLE if why_not(each, in_parts(PLANE, x, y), ISA) is None]
        assert able == [split_bf16.SOLVER]
        assert why_not(split_bf16.SOLVER, replace(in_parts(PLANE, x, y), in_layout="NCHW", out_layout="NCHW"), ISA)
        assert Types.parse(str(in_parts(PLANE, x, y).types)) == in_parts(PLANE, x, y).types


def test_operands_for_the_tuner():
    """Arrays in parts hold the numbers of those in float32."""
    problem = in_parts(replace(PLANE, residual=True), IN_PARTS[2], IN_PARTS[3])
    plain = random_operands(replace(PLANE, residual=True, in_layout=IN_BLOCKS, out_layout=IN_BLOCKS))
    found = random_operands(problem)
    np.testing.assert_allclose(join_parts(found.x), plain.x, rtol=2.0**-16)
    np.testing.assert_array_equal(join_parts(found.residual), plain.residual)
    trial = Shared(problem)
    trial.spoil()
    assert np.isnan(join_parts(trial.out)).all()


CHAIN = """g (float[1,40,h,11] x) => (float[1,40,h,11] y, float[1,72,i,5] z) {
    a = Conv(x, w0, b0) ra = Relu(a)
    b = Conv <pads = [1, 1, 1, 1]> (ra, w1, b1) rb = Relu(b)
    c = Conv(rb, w2, b2) d = Add(c, x) rd = Relu(d)
    e = Conv(rd, w0, b0) re = Relu(e)
    f = Conv <pads = [1, 1, 1, 1]> (re, w1, b1)
    h = Conv(f, w2, b2) i = Add(h, rd) y = Relu(i)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (rd)
    z = Conv <pads = [1, 1, 1, 1]> (p, w3, b3)
}"""


def test_a_chain(monkeypatch, tmp_path):
    """Convolutions read what others wrote in parts; a residual is read from parts; copies are around them."""
    graphs = pytest.importorskip("support.graphs")
    form, exact = (NARROW[Target(ISA, limits=Limits(each)).stored_parts][BLOCKED] for each in ("standard", "exact"))
    assert (form, exact) == tuple(NARROW[each][BLOCKED] for each in IN_PARTS.values())
    shapes = {"w0": (64, 40, 1, 1), "w1": (64, 64, 3, 3), "w2": (40, 64, 1, 1), "w3": (72, 40, 3, 3)}
    constants = {name: oracle.normal(shape) * np.float32(np.prod(shape[1:]) ** -0.5) for name, shape in shapes.items()}
    constants |= {f"b{at}": oracle.normal((shape[0],), at) for at, shape in enumerate(shapes.values())}
    model = graphs.parse(CHAIN, **constants)
    monkeypatch.setitem(planning.RULES, planning.CHEAPEST, lambda planner: planner.uniform(form))
    made = [cpuconv.compile(model, threads=threads, strategy="heuristic") for threads in (1, oracle.THREADS)]
    for height in (9, 12, 9):
        feed = {"x": oracle.normal((1, 40, height, 11), height)}
        results = [each.run(feed) for each in made]
        for (name, y), expected in zip(results[0].items(), graphs.run(model, feed, wide=True), strict=True):
            assert np.abs(y - expected).max() <= 2e-5 * np.abs(expected).max()
            np.testing.assert_array_equal(y, results[1][name])
    rows = [row for row in made[0].explain().operators if row.op == "Conv"]
    assert sum(row.layouts.count(form) for row in rows) > 8, rows
    assert any("bf16x2:f32:bf16x2, 3 products of bfloat16" in row.types for row in rows), rows
    made[0].save(tmp_path / "chain.cpuconv")
    monkeypatch.undo()
    for name, y in cpuconv.load(tmp_path / "chain.cpuconv").run(feed).items():
        np.testing.assert_array_equal(y, results[0][name])
