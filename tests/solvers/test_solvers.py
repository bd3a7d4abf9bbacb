"""Every solver, forced by name on what it claims to run."""

from __future__ import annotations

import itertools
import sys
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.conv.choice import model
from cpuconv.conv.recipe import Candidate, assemble, workspace_bytes
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import BY_NAME, TABLE, fft, winograd
from cpuconv.solvers.shared import transformed, winograd_tiles
from cpuconv.solvers.shared.solver import Solver
from support import oracle
from support.geometry import of, problems, upto
from support.guarded import EDGES

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
SOLVERS = pytest.mark.parametrize("solver", oracle.SOLVERS, ids=lambda solver: solver.name)
BLOCKED = layouts.blocked(current().lanes).name

TILES = pytest.mark.parametrize(
    "a, r, s",
    [
        (a, r, s)
        for r, s in ((3, 3), (5, 5), (2, 2), (1, 7), (3, 1), (1, 2), (5, 1))
        for a in winograd_tiles.POINTS
        if max(r, s) < a <= winograd_tiles.LARGEST[min(r, s) > 1]
    ],
)

ODD = [1, 3, 15, 16, 17, 31, 33, 47, 64, 70]
PLANES = [1, 2, 3, 5, 7, 8, 12, 17]
ACTIVATIONS = [None, None, "relu", ("clip", -0.5, 0.75), "sigmoid"]


def several(solver: Solver, problem: ConvProblem) -> list[str]:
    """Names of the first, a middle and the last candidate."""
    names = [str(Candidate(solver, params)) for params in solver.candidates(problem, current())]
    assert names, f"{solver.name} claims {problem.key} but has no candidate"
    assert len(set(names)) == len(names)
    return list(dict.fromkeys((names[0], names[len(names) // 2], names[-1])))


def edge(solver: Solver, problem: ConvProblem) -> tuple[int, int]:
    """Output height and width of the first candidate's tile."""
    params = next(iter(solver.candidates(problem, current())))
    if solver is fft.SOLVER:  # its rows and columns are those of the input
        return fft.outputs(problem, params.rows, params.cols)
    return (params.rows, params.cols) if hasattr(params, "rows") else (1, params.n)


def plane_of(problem: ConvProblem, oh: int, ow: int) -> ConvProblem | None:
    """The problem with another output plane; None where no input gives it."""
    sizes = []
    for outputs, step, span, near in zip(
        (oh, ow), problem.stride, problem.effective_kernel, (problem.pads[0], problem.pads[2]), strict=True
    ):
        sizes.append((outputs - 1) * step + span - 2 * near)
    if min(sizes) < 1 or min(oh, ow) < 1:
        return None
    top, left = problem.pads[0], problem.pads[2]
    return replace(problem, h=sizes[0], w=sizes[1], pads=(top, top, left, left))


@SOLVERS
def test_edges_of_a_tile(solver):
    problem = oracle.home(solver)
    rows, cols = edge(solver, problem)
    planes = {(rows + i, cols + j) for i, j in ((-1, 0), (0, -1), (0, 0), (1, 1), (-1, 1), (1, -1))}
    if rows == 1:  # pixels of the plane as one row
        planes |= {(1, cols - 1), (1, cols), (1, cols + 1)}
    ran = 0
    for oh, ow in sorted(planes):
        sized = plane_of(problem, oh, ow)
        if sized is not None and solver.applicable(sized, current()) is None:
            assert (sized.oh, sized.ow) == (oh, ow)
            oracle.check(sized, several(solver, sized)[0])
            ran += 1
    assert ran >= 2


@SOLVERS
@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
def test_several_candidates(solver, threads):
    problem = replace(oracle.home(solver), n=2, threads=threads)
    for name in several(solver, problem):
        assert oracle.check(problem, name).algorithm == name


@SOLVERS
def test_channels_around_a_block(solver):
    lanes = current().lanes
    problem = oracle.home(solver)
    for size in (1, lanes - 1, lanes, lanes + 1, 2 * lanes + 3, 70):
        if problem.groups == 1:
            options = [replace(problem, c=size), replace(problem, k=size)]
        else:
            options = [replace(problem, c=size * problem.cg, k=size * problem.kg, groups=size)]
        for option in options:
            if solver.applicable(option, current()) is None:
                oracle.check(option, solver.name)


@SOLVERS
def test_layouts(solver):
    problem = oracle.home(solver)
    same = [(name, name) for name in ("NCHW", "NHWC", BLOCKED)]
    for pair in (*same, ("NCHW8c", "NCHW4c"), ("NCHW4c", "NCHW16c"), ("NCHW16c", "NHWC"), ("NHWC", "NCHW8c")):
        option = replace(problem, in_layout=pair[0], out_layout=pair[1], residual=pair[0] == pair[1])
        if solver.applicable(option, current()) is None:
            oracle.check(option, solver.name)


@SOLVERS
@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
def test_epilogue(solver, threads):
    """Residual, bias and activation; one activation does not keep zero, so tail lanes must be cleared."""
    problem = replace(oracle.home(solver), threads=threads)
    for act, residual, bias in ((("clip", -0.5, 0.75), True, True), (("sigmoid",), False, True), (None, True, False)):
        for out_layout in (BLOCKED, "NCHW"):
            option = replace(problem, activation=act, residual=residual, out_layout=out_layout)
            oracle.check(option, solver.name, bias=bias)


@SOLVERS
@pytest.mark.parametrize("stride, dilation, pads", [((2, 3), (1, 1), (0, 1, 2, 0)), ((3, 1), (2, 3), (4, 3, 0, 5))])
def test_strides_dilation_padding(solver, stride, dilation, pads):
    problem = replace(oracle.home(solver), h=23, w=19, stride=stride, dilation=dilation, pads=pads)
    if (reason := solver.applicable(problem, current())) is not None:
        problem = replace(oracle.home(solver), h=23, w=19, pads=pads)
        assert reason
        if solver.applicable(problem, current()) is not None:
            problem = replace(problem, pads=(0, 0, 0, 0), stride=stride)
    for option in (problem, replace(problem, in_layout=BLOCKED, out_layout=BLOCKED)):
        if option.in_layout == "NCHW" or solver.applicable(option, current()) is None:
            oracle.check(option, solver.name)


LANES = current().lanes
USUAL = {
    "cg": of(*ODD), "kg": of(*ODD), "h": of(*PLANES), "w": of(*PLANES), "r": of(1, 2, 3, 5), "s": of(1, 3, 4, 7),
    "in_layout": of(BLOCKED, BLOCKED, *layouts.NAMES), "out_layout": of(BLOCKED, BLOCKED, *layouts.NAMES),
    "activation": of(*ACTIVATIONS), "threads": of(1, oracle.THREADS),
}  # fmt: skip
GROUPS = {"groups": of(2, 3), "cg": of(LANES, 2 * LANES), "kg": of(LANES, 2 * LANES)}
POINT, STEPS = {"r": of(1), "s": of(1), "pad": of(0)}, {"sh": of(1), "sw": of(1)}
LAST = {"in_layout": of("NHWC"), "out_layout": of("NHWC")}
LANEWISE = {"kg": None, "h": upto(20), "w": upto(20), "r": upto(7), "s": upto(7)}
LIKELY: dict[str, list[dict[str, Any]]] = {  # what a solver may claim, where it is not the usual
    "pointwise": [POINT, {**POINT, **GROUPS}],
    "channels_last": [{**POINT, **STEPS, **layout, "kg": of(LANES, 3 * LANES), "groups": of(1)}
                      for layout in (LAST, LAST, {"in_layout": of("NHWC")})]
                     + [{**POINT, **STEPS, **LAST, **GROUPS}],
    "winograd": [STEPS, {**STEPS, **GROUPS}],
    "strassen": [{**POINT, **STEPS, **layout, "groups": of(1), "cg": of(2 * LANES, 4 * LANES),
                  "kg": of(2 * LANES, 6 * LANES)} for layout in ({}, LAST)],
    "direct": [{}, GROUPS],
    "first_layer": [{}, {**GROUPS, "cg": of(1, 3, LANES), "kg": of(LANES)}],
    "im2col": [{}, {**GROUPS, "cg": of(1, 3, LANES), "kg": of(1, 3, LANES)}],
    "planar": [{"groups": upto(3), "cg": upto(9), "kg": upto(9), "h": upto(12), "w": upto(70), "sw": upto(9),
                "dh": upto(9), "dw": upto(9)}],
    "fft": [{**STEPS, "cg": upto(70), "kg": upto(70), "h": upto(50), "w": upto(50), "r": upto(13), "s": upto(13),
             "dh": upto(2), "dw": upto(2), "pad": upto(6, 0)}],
    "depthwise": [{**LANEWISE, "groups": upto(70), "cg": of(1)}],
    "grouped": [{**LANEWISE, "groups": upto(16), "cg": of(*([size for size in (2, 4, 8) if size < LANES] or [1]))}],
}  # fmt: skip


def likely_of(solver: Solver) -> list[dict[str, Any]]:
    """Its own line, or that of the solver whose problem it takes."""
    return LIKELY.get(solver.name) or LIKELY[oracle.kind(solver)]


EXAMPLES = {"planar": 35, "fft": 20, "depthwise": 35, "grouped": 25}  # where 12 are not enough


@SOLVERS
def test_whatever_it_claims(solver):
    """On whole arrays, and on images that lie apart."""
    likely = st.sampled_from(likely_of(solver)).flatmap(
        lambda ranges: problems(**{**USUAL, **ranges, "n": of(1, 2, 3, 3)})
    )

    @settings(max_examples=EXAMPLES.get(solver.name, 12))
    @given(likely, st.integers(0, 99))
    def claims(problem, choice):
        assume(solver.applicable(problem, current()) is None)
        found = candidates(solver, problem)
        assert len({*map(str, found)}) == len(found) > 0
        candidate = found[choice % len(found)]
        oracle.check(problem, str(candidate), seed=choice)
        oracle.check_apart(problem, candidate, choice, EDGES[choice % 2])

    claims()


@SOLVERS
@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
def test_twice_bit_for_bit(solver, threads):
    """Also where tiles overlap at the far edges, whoever computes them."""
    problem = replace(oracle.home(solver), n=3, threads=threads)
    for option in (replace(problem, residual=True), replace(problem, h=15, w=23)):
        have = oracle.operands(option)
        plans = [oracle.plan(option, have, solver.name) for _ in range(2)]
        results = {oracle.run(made, have).tobytes() for made in plans * 15}
        assert len(results) == 1, f"{len(results)} different results"


@TILES
def test_winograd_tiles(a, r, s, monkeypatch):
    """Each tile size at the edges, and its accuracy on many channels."""
    monkeypatch.setattr(winograd_tiles, "_MAX_TILES", 99)
    m, n = (a - r + 1 if r > 1 else 1), (a - s + 1 if s > 1 else 1)

    def names(problem):
        return [
            str(Candidate(winograd.SOLVER, params))
            for params in winograd.candidates(problem, current())
            if (params.rows, params.cols) == (m, n)
        ]

    for oh, ow in ((m, n), (m + 1, 2 * n - 1), (2 * m, 3 * n + 1)):
        pads = (r // 2, r - 1 - r // 2, s // 2, s - 1 - s // 2)
        problem = ConvProblem(2, 19, oh, ow, 35, r, s, pads=pads, activation="relu", residual=True)
        oracle.check(problem, names(problem)[0])
        oracle.check(replace(problem, activation=None, residual=False, threads=oracle.THREADS), names(problem)[-1])
    deep = ConvProblem(1, 512, 2 * m + r - 1, 3 * n + s - 1, 64, r, s)
    if winograd_tiles.error(deep, (m, n)) <= transformed.LARGEST_ERROR:
        oracle.check(deep, names(deep)[0])
    else:
        assert not names(deep)


@pytest.mark.parametrize(
    "a, r", [(a, r) for r in (1, 2, 3, 5, 7) for a in winograd_tiles.POINTS if a > r or a == r == 1]
)
def test_winograd_matrices(a, r):
    """Aᵀ[(G·g·Gᵀ) ⊙ (Bᵀ·d·B)]A is the direct correlation, in float64 without the kernels."""
    m = a - r + 1
    at, g, bt = winograd_tiles.matrices(m, r)
    rng = np.random.default_rng(1)
    d, taps = rng.standard_normal((a, a)), rng.standard_normal((r, r))
    y = at @ ((g @ taps @ g.T) * (bt @ d @ bt.T)) @ at.T
    direct = [[(d[i : i + r, j : j + r] * taps).sum() for j in range(m)] for i in range(m)]
    np.testing.assert_allclose(y, direct, rtol=0, atol=1e-11)


@pytest.mark.parametrize("plane", [(1, 1), (5, 4), (7, 16), (13, 9)])
@pytest.mark.parametrize("dilation", [(2, 3), (1, 6), (12, 4)])
def test_winograd_phases(plane, dilation):
    """Planes smaller than the dilation, phases of two sizes, groups, batches."""
    lanes = current().lanes
    pads = (dilation[0], dilation[0], dilation[1], dilation[1])
    problem = ConvProblem(2, 2 * lanes, *plane, 4 * lanes, 3, 3, (1, 1), pads, dilation, 2, residual=True)
    for name in several(winograd.SOLVER, problem):
        oracle.check(problem, name)
        oracle.check(replace(problem, groups=1, k=lanes + 1, threads=oracle.THREADS), winograd.SOLVER.name)


def candidates(solver: Solver, problem: ConvProblem) -> list[Candidate]:
    return [Candidate(solver, params) for params in solver.candidates(problem, current())]


# Kinds of problems, for what holds without running anything.
KINDS = [
    ConvProblem(1, 3, 32, 32, 64, 7, 7, (2, 2), (3, 2, 3, 2)),
    ConvProblem(1, 64, 14, 14, 64, 3, 3, pads=(1, 1, 1, 1)),
    ConvProblem(2, 64, 14, 14, 96, 1, 1),
    ConvProblem(1, 64, 14, 14, 96, 1, 1, (2, 2)),
    ConvProblem(1, 64, 14, 14, 96, 1, 1, pads=(1, 0, 0, 1)),
    ConvProblem(1, 40, 14, 14, 40, 3, 3, groups=40),
    ConvProblem(1, 40, 14, 14, 80, 3, 3, groups=40),
    ConvProblem(1, 40, 14, 14, 20, 3, 3, groups=20),
    ConvProblem(1, 32, 14, 14, 32, 3, 3, groups=8),
    ConvProblem(1, 30, 14, 14, 30, 3, 3, groups=6),
    ConvProblem(1, 33, 14, 14, 66, 3, 3, groups=3),
    ConvProblem(1, 64, 14, 14, 64, 3, 3, groups=2, pads=(1, 1, 1, 1)),
    ConvProblem(1, 5, 9, 40, 7, 1, 40),
    ConvProblem(1, 5, 40, 9, 7, 33, 3, dilation=(1, 2)),
    ConvProblem(1, 5, 40, 9, 7, 3, 3, (3, 1), (0, 4, 7, 1), (3, 2)),
    ConvProblem(3, 1, 1, 1, 1, 1, 1),
    ConvProblem(1, 17, 2, 2, 9, 5, 5, pads=(2, 2, 2, 2)),
    ConvProblem(1, 16, 31, 29, 16, 5, 5, pads=(2, 2, 2, 2)),
    ConvProblem(1, 16, 64, 64, 16, 13, 11, pads=(6, 6, 5, 5)),
]
EVERY_KIND = pytest.mark.parametrize("problem", KINDS, ids=lambda problem: problem.shape_key)


@EVERY_KIND
def test_every_problem_has_a_solver_in_every_layout(problem):
    for pair in itertools.product(layouts.NAMES, repeat=2):
        option = replace(problem, in_layout=pair[0], out_layout=pair[1])
        exact = [item for item in model.ranking(option) if item.candidate.accuracy == "exact"]
        assert exact, f"nothing exact runs {option.key}"


@EVERY_KIND
def test_a_reason_or_candidates(problem):
    for name, reason in model.applicable(problem):
        if reason is None:
            assert several(BY_NAME[name], problem)
        else:
            assert isinstance(reason, str) and len(reason.split()) > 2


@EVERY_KIND
def test_names_costs_and_packing(problem):
    have = oracle.operands(problem)
    for solver in oracle.SOLVERS:
        if solver.applicable(problem, current()) is not None:
            continue
        found = candidates(solver, problem)
        for candidate in found:
            assert Candidate.parse(str(candidate)) == candidate
            assert candidate.accuracy in model.ACCURACIES
            cost = solver.cost(problem, candidate.params, machine())
            assert 0 < cost.bound <= cost.estimate < 10
            assert workspace_bytes(problem, candidate) >= 0
        packing = solver.packing(problem, found[0].params, current())
        packed = packing.pack(have.w)
        assert packed.dtype == np.float32 and packed.flags.c_contiguous
        assert packed.nbytes == packing.size and packed.ctypes.data % ALIGNMENT == 0
        assert packed.nbytes >= problem.weight_bytes or solver.accuracy != "exact"
        assert np.isfinite(packed).all()


@pytest.mark.parametrize(
    "text", ["", "direct", "direct()", "direct(v=1)", "nothing(v=1)", "direct(v=1,rows=2,cols=3,block=x)", "direct(v=1"]
)
def test_names_of_nothing(text):
    with pytest.raises(ValueError, match="name"):
        Candidate.parse(text)


def test_the_table_is_named():
    names = [solver.name for solver in TABLE]
    assert len(set(names)) == len(names) and list(BY_NAME) == names
    for solver in TABLE:
        assert (sys.modules[solver.module].__doc__ or "").strip()
        assert is_dataclass(solver.params) and {*solver.rounding} <= {field.name for field in fields(solver.params)}


def test_a_solver_needs_what_its_layouts_say():
    """A reorder around a solver is counted and bound exactly where the solver asks for another layout."""
    for problem, solver in itertools.product(KINDS, oracle.SOLVERS):
        if solver.applicable(problem, current()) is None:
            candidate = candidates(solver, problem)[0]
            needs = solver.layouts(problem, candidate.params, current())
            assert all(need is None or need in layouts.NAMES for need in needs)
            reorders = sum(need not in (None, "NCHW") for need in needs)
            steps = assemble(problem, candidate).steps
            assert sum("reorder" in step.kernel.name for step in steps) == reorders


@pytest.mark.parametrize("out_layout", ["NCHW", BLOCKED])
@pytest.mark.parametrize(
    "solver", [solver for solver in oracle.SOLVERS if solver.accuracy == "exact"], ids=lambda s: s.name
)
def test_not_finite(solver, out_layout):
    """NaN and infinities in the input reach exactly the outputs that the direct sum gives them to; tails stay zero."""
    problem = replace(oracle.home(solver), out_layout=out_layout)
    have = oracle.operands(problem)
    x = have.x
    x[0, 1, 4, 5], x[0, 2, 0, 0], x[0, 0, 7, 9] = np.nan, np.inf, -np.inf
    expected = reference.conv2d(x, have.w, have.bias, problem)
    y = oracle.run(oracle.plan(problem, have, solver.name), have)
    assert not np.isfinite(expected).all() and np.isfinite(expected).any()
    oracle.expect(y, expected, "exact", problem.out_layout, problem.k, solver.name)
