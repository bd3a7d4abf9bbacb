"""The planar solver: pixels along lanes, whatever is left of a plane after its last vector, any view of the input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpuconv.conv.choice.model import ranking
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.isa import current
from cpuconv.isa.table import TABLE
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.convolutions.planar import ANY, IN_PLACE, PLANES, ROWS
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import planar
from support import oracle

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
ISA = current()
LANES = ISA.lanes


def all_of(problem: ConvProblem) -> list[str]:
    """The names of the solver's candidates."""
    return [str(ranked.candidate) for ranked in ranking(problem, planar.SOLVER.name)]


@pytest.mark.parametrize(
    "rest", sorted({0, 1, 2, LANES // planar._SCALAR_SHARE, LANES // planar._SCALAR_SHARE + 1, LANES - 1})
)
@pytest.mark.parametrize("vectors", [0, 1, 3])
def test_whatever_is_left_of_a_plane(vectors, rest):
    """Planes of whole vectors and a few pixels; channels that are no multiple of a tile."""
    if vectors * LANES + rest == 0:
        return
    problem = ConvProblem(1, 11, 1, vectors * LANES + rest, 23, 1, 1, activation="relu", residual=True)
    for name in all_of(problem):
        oracle.check(problem, name)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("width", [LANES + LANES // planar._SCALAR_SHARE, 3 * LANES + 1, 3 * LANES - 1])
def test_packed_rows_stay_within_theirs(width, stride):
    """Runs of pixels are moved by whole vectors that spill to the right, from loose pixels too."""
    problem = ConvProblem(1, 4, 3, stride * width, 9, 3, 3, (3, stride), (0, 0, 1, 1), threads=oracle.THREADS)
    for name in all_of(problem)[:2]:
        oracle.check(problem, name)


@pytest.mark.parametrize("threads", [1, oracle.THREADS])
@pytest.mark.parametrize("depth", [1, 7, 8, 9, 16, 17, 65])
def test_parts_of_the_reduction(depth, threads):
    problem = ConvProblem(1, depth, 5, 2 * LANES + 1, 19, 1, 1, activation="sigmoid", residual=True, threads=threads)
    given = oracle.operands(problem)
    first = next(iter(planar.candidates(problem, ISA)))
    candidates = [Candidate(planar.SOLVER, replace(first, parts=parts)) for parts in (1, 2, 3, 100)]
    results = [oracle.run(oracle.plan(problem, given, candidate), given) for candidate in candidates]
    expected = reference.conv2d(given.x, given.w, given.bias, problem, given.residual)
    oracle.expect(results[0], expected, "exact", "NCHW", problem.k)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])  # parts do not change a bit


@pytest.mark.parametrize(
    ("text", "packed", "pack"),
    [
        ("ic16ih8oc16kh1", 1, PLANES),
        ("ic16ih8oc16kh1", 0, IN_PLACE),
        ("ic16ih8oc16kh1sh2", 1, ROWS),
        ("ic16ih8oc16kh3ph1", 1, ROWS),
        ("ic16ih40iw40oc16kh3kw3sh9sw9", 1, ANY),  # steps too long to pick floats from vectors
    ],
)
def test_how_panels_come_about(text, packed, pack):
    problem = ConvProblem.parse(text)
    params = replace(next(iter(planar.candidates(problem, ISA))), packed=packed)
    (step,) = assemble(problem, Candidate(planar.SOLVER, params)).steps
    assert step.tile.pack == pack


def test_any_view_of_the_input():
    """Rows with gaps, columns with gaps, and rows that run backwards."""
    problem = ConvProblem(1, 5, 9, 21, 7, 1, 1)
    for view in (np.s_[:, :, :, :21], np.s_[:, :, :, ::2], np.s_[:, :, ::-1, :21]):
        given = oracle.operands(problem)
        x = oracle.normal((1, 5, 9, 42))[view]
        made = oracle.plan(problem, given, planar.SOLVER.name)
        expected = reference.conv2d(np.ascontiguousarray(x), given.w, given.bias, problem, None)
        oracle.expect(made(x), expected, "exact", "NCHW", problem.k)


@pytest.mark.parametrize("isa", TABLE, ids=lambda isa: isa.name)
@pytest.mark.parametrize("pixels", [1, 49, 169, 196, 3136])
@pytest.mark.parametrize("kernels", [1, 5, 64, 255])
def test_shapes(isa, pixels, kernels):
    """Tiles fit the registers and the plane, on every instruction set."""
    found = planar.shapes(isa, kernels, pixels, 64)
    assert 1 <= len(found) == len(set(found))
    for v, n in found:
        panels, rest, loose = planar.split(isa, v, n, pixels)
        assert (panels - 1) * v * isa.lanes + rest + loose == pixels and 0 < rest <= v * isa.lanes
        assert 1 <= n <= kernels
        assert (
            n <= isa.pixels[v - 1] if v <= len(isa.pixels) else n == 1 and v <= isa.registers - planar._OTHER_REGISTERS
        )
        if loose:
            assert v * n + v + loose < isa.registers and n <= isa.lanes


@pytest.mark.parametrize("kernels", [1, 2, 3])
@pytest.mark.parametrize("pixels", [-1, 0, 1, LANES // planar._SCALAR_SHARE + 1, 5 * LANES + 3])
def test_few_channels_have_wide_tiles(kernels, pixels):
    """Panels of as many vectors as registers hold, of planes that they fill, and that they do not."""
    widest = ISA.registers - planar._OTHER_REGISTERS
    problem = ConvProblem(2, 19, 1, 2 * widest * LANES + pixels, kernels, 1, 1, activation="relu", residual=True)
    wide = [each for each in planar.candidates(problem, ISA) if each.v > len(ISA.pixels)]
    assert bool(wide) == (kernels <= planar._FEW)
    for params in wide:
        assert (params.v, params.n) == (widest, 1)
        oracle.check(problem, str(Candidate(planar.SOLVER, params)))


def test_few_candidates_each_with_a_cost():
    for text in ("ic2048ih7oc512kh1", "ic64ih56oc256kh1", "ic3ih224oc64kh7sh2ph3", "ic3ih224oc64kh3ph1"):
        problem = ConvProblem.parse(text)
        found = list(planar.candidates(problem, ISA))
        assert 1 <= len(found) == len(set(found)) <= 12
        for params in found:
            cost = planar.cost(problem, params, machine())
            assert 0 < cost.bound < cost.estimate


def test_threads_share_a_single_panel():
    problem = ConvProblem(1, 8, 1, LANES, 16, 1, 1, threads=2)
    (step,) = assemble(problem, Candidate(planar.SOLVER, planar.Params(1, 1, 1, 0))).steps
    assert (step.args["panels"], step.args["chunks"]) == (1, 2)
