"""What Winograd tiles state of their errors, and how the choice heeds it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import layouts
from cpuconv.conv.choice import model, tuned
from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import winograd
from cpuconv.solvers.shared import transformed, winograd_tiles
from cpuconv.tuning.checking import ERROR_LIMITS
from support import oracle

ISA = current()
BLOCKED = layouts.blocked(ISA.lanes).name
KERNELS = [(3, 3), (2, 2), (4, 4), (5, 5), (6, 6), (7, 7), (3, 1), (1, 7), (3, 5)]
LOOSE = 20  # times a stated error may be the measured one: what it is good for is to compare tiles


def sizes(r: int, s: int) -> list[winograd_tiles.Size]:
    return winograd_tiles.figures_of(r, s)[0]


def convolution(channels: int, m: winograd_tiles.Size, r: int, s: int) -> ConvProblem:
    """Of 12 tiles, with channels to spare in the last block of outputs."""
    high, wide = 3 * m[0] + r - 1, 4 * m[1] + s - 1
    return ConvProblem(1, channels, high, wide, ISA.lanes + 3, r, s, in_layout=BLOCKED, out_layout=BLOCKED)


def measured(problem: ConvProblem, m: winograd_tiles.Size) -> float:
    """The largest error of a tile size relative to the largest output."""
    given = oracle.operands(problem, 0, bias=False)
    candidate = Candidate(winograd.SOLVER, winograd.Params(*m, 2, 1, 4, 1))
    y = oracle.run(oracle.plan(problem, given, candidate), given)
    return reference.relative_error(y, reference.conv2d(given.x, given.w, given.bias, problem))


@pytest.mark.parametrize("r, s", KERNELS)
def test_stated_error_bounds_the_measured_one(r, s):
    channels = 2 * ISA.lanes + 1
    tiles = [m for m in sizes(r, s) if m[0] == m[1] or 1 in (r, s)] if r == s else sizes(r, s)[::3]
    for m in tiles:
        problem = convolution(channels, m, r, s)
        stated = winograd_tiles.error(problem, m)
        assert stated / LOOSE < measured(problem, m) <= stated, m


@pytest.mark.parametrize("channels", [ISA.lanes - 1, 8 * ISA.lanes, 20 * ISA.lanes + 1])
def test_errors_grow_with_channels_as_stated(channels):
    problem = convolution(channels, (4, 4), 3, 3)
    stated = winograd_tiles.error(problem, (4, 4))
    assert stated / LOOSE < measured(problem, (4, 4)) <= stated


@pytest.mark.parametrize("a", [a for a in winograd_tiles.POINTS if a > 1])
def test_transforms_are_exact_in_float32(a):
    """But for the two largest: their constants are rounded, as the data are."""
    points = winograd_tiles.POINTS[a]
    assert len(set(points)) == a - 1 and {-p for p in points} == set(points)
    for r in range(2, min(a, 8)):
        at, g, bt = winograd_tiles.matrices(a - r + 1, r)
        x, w = np.arange(1.0, a + 1) ** 2, np.arange(2.0, r + 2) ** 3
        np.testing.assert_allclose(at @ ((g @ w) * (bt @ x)), np.correlate(x, w, "valid"), rtol=1e-11)
        if a <= 8:
            for matrix in (at, bt):
                np.testing.assert_array_equal(matrix.astype(np.float32), matrix)


def test_no_tile_breaks_the_promise_of_its_class():
    few = convolution(64, (6, 6), 3, 3)
    assert ERROR_LIMITS[winograd.SOLVER.accuracy] > transformed.LARGEST_ERROR
    for channels in (64, 4096, 65536):
        problem = replace(few, c=channels)
        assert winograd.applicable(problem, ISA) is None
        found = winograd_tiles.tile_sizes(problem)
        assert found and all(winograd_tiles.error(problem, m) <= transformed.LARGEST_ERROR for m in found)
    assert (6, 6) in winograd_tiles.tile_sizes(few) and (6, 6) not in winograd_tiles.tile_sizes(replace(few, c=65536))
    assert "too many" in winograd.applicable(replace(few, c=2**34), ISA)


def test_a_stored_tile_that_is_no_longer_admitted_is_passed_over():
    few = convolution(64, (6, 6), 3, 3)
    params = next(each for each in winograd.candidates(few, ISA) if (each.rows, each.cols) == (6, 6))
    assert tuned.named(few, str(Candidate(winograd.SOLVER, params))) is not None
    assert tuned.named(replace(few, c=65536), str(Candidate(winograd.SOLVER, params))) is None


def test_of_tiles_that_take_as_long_the_more_accurate_is_chosen(monkeypatch):
    """Without the charge, the model takes a tile of a larger error for three images of ResNet-50's second stage."""
    problem = ConvProblem(3, 64, 56, 56, 64, 3, 3, (1, 1), (1, 1, 1, 1), in_layout=BLOCKED, out_layout=BLOCKED)

    def chosen() -> winograd_tiles.Size:
        model._costed.cache_clear()
        params = model.by_model(problem, model.Limits(), "winograd(").params
        return params.rows, params.cols

    charged = winograd_tiles.error(problem, chosen())
    monkeypatch.setattr(transformed, "_PRICE", 0)
    free = winograd_tiles.error(problem, chosen())
    monkeypatch.undo()
    model._costed.cache_clear()
    assert charged <= free
