"""Strassen's algorithm: odd and few pixels, its stated error, and where the model chooses it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.conv.choice import model
from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import strassen
from cpuconv.solvers.shared import transformed
from cpuconv.symbolic.sizes import is_symbolic
from support import oracle

LANES = current().lanes
BLOCKED = layouts.blocked(LANES).name
LOOSE = 20  # ratio of the stated error to the measured one, at most


def rows(pixels: int, c: int, k: int, layout: str = "NHWC", **fields) -> ConvProblem:
    return ConvProblem(1, c, 1, pixels, k, 1, 1, in_layout=layout, out_layout=layout, **fields)


@pytest.mark.parametrize("layout", ["NHWC", BLOCKED])
@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
def test_few_and_odd_pixels(layout, threads):
    for pixels, images in ((1, 1), (2, 1), (3, 2), (7, 1), (1, 5), (30, 1), (31, 2)):
        problem = replace(rows(pixels, 2 * LANES, 4 * LANES, layout, threads=threads), n=images)
        oracle.check(problem, "strassen")
        oracle.check(replace(problem, residual=images == 1, activation="silu"), "strassen", bias=False)


@pytest.mark.parametrize("blocks", [2, 16])
def test_stated_error_bounds_the_measured_one(blocks):
    problem = rows(31, blocks * LANES, 2 * LANES)
    given = oracle.operands(problem, 0, bias=False)
    y = oracle.run(oracle.plan(problem, given, "strassen"), given)
    error = reference.relative_error(y, reference.conv2d(given.x, given.w, given.bias, problem))
    stated = strassen.error(problem)
    assert stated / LOOSE < error <= stated < transformed.LARGEST_ERROR


def test_equal_bits_whatever_the_tile():
    problem = rows(61, 4 * LANES, 6 * LANES)
    given = oracle.operands(problem)
    found = [Candidate(strassen.SOLVER, strassen.Params(*sizes)) for sizes in ((1, 5, 9, 3), (2, 4, 31, 1))]
    first, second = (oracle.run(oracle.plan(problem, given, each), given) for each in found)
    np.testing.assert_array_equal(first, second)
    assert found[0].rounding == found[1].rounding


def test_applicable_to_pairs_of_blocks_of_plain_float32():
    problem = rows(9, 2 * LANES, 2 * LANES)
    assert strassen.applicable(problem, current()) is None
    channels = {"c": 3 * LANES}, {"c": 2**18}, {"k": 2 * LANES + 1}
    for change in (*channels, {"stride": (1, 2)}, {"groups": 2}, {"pads": (0, 0, 1, 0)}):
        assert strassen.applicable(replace(problem, **change), current())


def test_chosen_for_large_products_alone(described):
    """Not where transforms are a large share of the time, nor where few pixels meet weights from memory."""

    def chosen(pixels: int, c: int, k: int) -> bool:
        return model.ranking(rows(pixels, c, k))[0].candidate.solver is strassen.SOLVER

    assert chosen(256, 1024, 1024)
    assert not any(itertools.starmap(chosen, ((2, 1024, 1024), (256, 64, 64), (4096, 64, 256))))


def test_no_estimate_is_below_the_bound():
    for pixels, c, k in itertools.product((2, 50, 300), (2 * LANES, 24 * LANES), (2 * LANES, 32 * LANES)):
        problem = rows(pixels, c, k)
        least = strassen.bound(problem, machine())
        costs = [strassen.cost(problem, each, machine()).estimate for each in strassen.candidates(problem, current())]
        assert 0 < least <= min(costs) * 1.0001


def test_open_sizes(monkeypatch):
    """A program's template serves any number of rows."""
    bound: list[ConvProblem] = []

    def bind(problem, *more):
        bound.append(problem)
        return strassen.bind(problem, *more)

    solver = replace(strassen.SOLVER, bind=bind)
    monkeypatch.setattr(model, "TABLE", (solver,))
    weight = oracle.normal((2 * LANES, 4 * LANES))
    graphs = pytest.importorskip("support.graphs")
    graph = f"g (float[rows, {2 * LANES}] x) => (float[rows, {4 * LANES}] y) {{ y = MatMul(x, w) }}"
    network = cpuconv.compile(graphs.parse(graph, w=weight), threads=oracle.THREADS)
    for count in (2, 9, 30, 31, 32, 47, 61, 64, 3):
        x = oracle.normal((count, 2 * LANES), count)
        (y,) = network.run({"x": x}).values()
        np.testing.assert_allclose(y, x.astype(np.float64) @ weight, rtol=0, atol=1e-4)
    assert any(is_symbolic(problem.w) for problem in bound)
