"""The choice without enumerating everything: lower bounds are true, and the pruned search finds what ranking finds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import layouts
from autotune.store.store import Store
from cpuconv.conv.choice import auto_settings, model, select
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.sources.nearest_problem import nearest
from cpuconv.conv.recipe import workspace_bytes
from cpuconv.errors import ArgumentError, WorkspaceError
from cpuconv.isa import TABLE as SETS
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.products import tiling
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE, fft, winograd
from cpuconv.solvers.shared import transformed, winograd_tiles
from cpuconv.solvers.shared.solver import Solver
from support.running.processes import ROOT
from support.tuner.stored import timed

BLOCKED = layouts.blocked(current().lanes).name
PROBLEM = ConvProblem(1, 64, 56, 56, 128, 3, 3, pads=(1, 1, 1, 1))
KERNELS = [(1, 1), (3, 3), (5, 5), (7, 7), (2, 2), (1, 7), (3, 1), (12, 11)]
LINES = ROOT / "bench" / "shapes" / "canonical.txt"


@st.composite
def problems(draw) -> ConvProblem:
    r, s = draw(st.sampled_from(KERNELS))
    channels = st.sampled_from([1, 3, 16, 24, 64, 200, 512])
    c, k, groups = draw(channels), draw(channels), draw(st.sampled_from([1, 1, 1, 4, 24]))
    if draw(st.booleans()):
        k = c
    size = st.integers(1, 120)
    pads = (draw(st.integers(0, r // 2)),) * 2 + (draw(st.integers(0, s // 2)),) * 2
    step = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 3)])
    try:
        return ConvProblem(
            draw(st.sampled_from([1, 1, 3])), c * groups, draw(size), draw(size), k * groups, r, s, draw(step), pads,
            draw(step), groups, *(draw(st.sampled_from(["NCHW", "NHWC", BLOCKED])) for _ in range(2)),
            activation=draw(st.sampled_from([None, "relu"])), threads=draw(st.sampled_from([1, 2, 5])),
        )  # fmt: skip
    except ArgumentError:
        assume(False)
        raise


@given(problems(), st.sampled_from(SETS))
def test_no_candidate_is_below_its_solvers_bound(problem, isa):
    here = replace(machine(), isa=isa)
    for solver in TABLE:
        if solver.applicable(problem, isa) is None:
            bound = solver.bound(problem, here)
            assert bound > 0
            for params in solver.candidates(problem, isa):
                assert bound <= solver.cost(problem, params, here).estimate, (solver.name, params)


@given(problems())
def test_every_candidate_needs_the_layouts_that_its_solver_needs(problem):
    """So that the bound may count the reorders."""
    for solver in TABLE:
        if solver.applicable(problem, current()) is None:
            needs = solver.layouts(problem, None, current())
            held = problem.in_layout, problem.out_layout
            for params in solver.candidates(problem, current()):
                for all_need, one_needs, have in zip(
                    needs, solver.layouts(problem, params, current()), held, strict=True
                ):
                    assert all_need in (one_needs, None, have)


@settings(max_examples=60)
@given(problems(), st.sampled_from(model.ACCURACIES), st.data())
def test_the_search_finds_the_first_of_the_ranking(problem, accuracy, data):
    ranked = model.ranking(problem)
    one = data.draw(st.sampled_from(ranked)).candidate
    room = data.draw(st.sampled_from([None, workspace_bytes(problem, one)]))
    prefix = data.draw(st.sampled_from(["", f"{one.solver.name}(", one.rounding, str(one)]))
    limits = Limits(accuracy, room)
    named = [each for each in ranked if str(each.candidate).startswith(prefix)]
    first = next((each for each in named if model.why_excluded(problem, each, limits) is None), None)
    assert model.search(problem, limits, prefix) == first
    assert (model.within_limits(problem, limits, prefix) or [None])[0] == first
    if first is None:
        with pytest.raises((ArgumentError, WorkspaceError)):
            model.by_model(problem, limits, prefix)
        return
    assert model.by_model(problem, limits, prefix) == first.candidate
    assert model.search(problem, limits, prefix, below=first.cost.estimate) is None
    assert model.search(problem, limits, prefix, below=1.01 * first.cost.estimate) == first


@settings(max_examples=30)
@given(problems(), st.sampled_from(model.ACCURACIES), st.booleans())
def test_auto_layouts_are_the_best_of_all_pairs(problem, accuracy, reproducible):
    limits = Limits(accuracy, reproducible=reproducible)
    found = auto_settings.resolve_layouts(problem, "auto", "auto", limits)
    assert found == replace(problem, in_layout=found.in_layout, out_layout=found.out_layout)

    def estimate(option: ConvProblem) -> float:
        option = replace(option, threads=1 if reproducible else option.threads)
        planes = (option.in_layout, option.out_layout).count("NCHW")
        return model.within_limits(option, limits)[0].cost.estimate * auto_settings._MIN_NCHW_SPEEDUP**planes

    few = [2 * channels <= current().lanes for channels in (problem.c, problem.k)]
    pairs = itertools.product(*(("NCHW",) if each else (BLOCKED, "NCHW") for each in few))
    assert estimate(found) == min(estimate(replace(problem, in_layout=a, out_layout=b)) for a, b in pairs)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each solver is asked for its candidates of a problem that nobody asked about before."""
    counts: Counter[str] = Counter()

    def counted(solver: Solver) -> Solver:
        def ask(*given: Any) -> Iterable[Any]:
            counts[solver.name] += 1
            return solver.candidates(*given)

        return replace(solver, candidates=ask)

    monkeypatch.setattr(model, "TABLE", tuple(map(counted, TABLE)))
    return counts


def test_solvers_that_cannot_win_are_not_asked(asked):
    lines = [line for line in LINES.read_text().splitlines() if line and not line.startswith("#")]
    problems = list({replace(ConvProblem.parse(line), n=2) for line in lines})
    for problem in problems:
        model.by_model(problem, Limits())
    able = sum(reason is None for problem in problems for _, reason in model.applicable(problem))
    assert len(problems) <= asked.total() <= able / 2
    asked.clear()
    model.by_model(replace(PROBLEM, n=2), Limits("exact"))
    assert not asked.keys() & {"winograd", "fft"}


def test_the_neighbour_is_looked_for_without_the_full_ranking(asked, our_store, monkeypatch):
    near = replace(PROBLEM, h=50)
    name = str(model.by_model(near, Limits()))
    searched = []
    winners = Store.winners
    monkeypatch.setattr(Store, "winners", lambda *args, **options: searched.append(1) or winners(*args, **options))
    our_store.put([timed(replace(near, w=w), name, 1e-3) for w in range(40, 50)])
    assert nearest(PROBLEM) == name
    before = len(searched)
    asked.clear()
    for size in range(51, 56):
        select.untuned(replace(PROBLEM, h=size), Limits())
    assert len(searched) == before  # what is alike is remembered
    assert asked["im2col"] == asked["direct"] == 0 or name.startswith(("im2col", "direct"))
    other = next(str(ranked.candidate) for ranked in model.ranking(PROBLEM) if str(ranked.candidate) != name)
    our_store.put([timed(PROBLEM, other, 1e-3)])
    assert nearest(PROBLEM) == other  # until the store changes
    assert len(searched) > before


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 7))
def test_cuts_are_counted_as_they_are_made(size, tile, step):
    assert transformed.cuts(size, tile, step) == len(transformed.axis_places(size, tile, step))


@given(
    st.sampled_from(SETS),
    st.integers(1, 9),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 5000),
    st.booleans(),
)
def test_tiles_are_those_of_the_model(isa, vectors, height, width, reduction, paired):
    """Arrays and scalars agree: the first is the best of all, the others follow in order."""

    def time(tile: tiling.Tile) -> float:
        if not paired:
            return tiling.plane_cycles(isa, tile, vectors, height, width, reduction)
        columns = -(-vectors // tile.v) * -(-width // tile.cols)
        return columns * tiling.complex_cycles(isa, tile.v, tile.cols, reduction)

    if paired:
        found = tiling.complex_tiles(isa, vectors, width, reduction, 4)
        every = [tiling.Tile(v, 1, n) for v, most in enumerate(isa.pairs, 1) for n in range(1, most + 1)]
    else:
        found = tiling.tiles(isa, vectors, height, width, reduction, 4)
        every = [
            tiling.Tile(v, rows, cols)
            for v, most in enumerate(isa.pixels, 1)
            for rows in range(1, min(tiling.MAX_ROWS, height) + 1)
            for cols in range(1, most // rows + 1)
            if rows <= 3 * cols or cols == width
        ]
    able = [tile for tile in every if tile.v <= vectors and tile.cols <= width]
    assert time(found[0]) == min(map(time, able))
    assert [time(tile) for tile in found] == sorted(time(tile) for tile in found)
    assert set(found) <= set(able) and len(set(found)) == len(found)


@given(problems())
def test_forms_are_those_with_the_least_work(problem):
    """Arrays and scalars agree, and no tile's work is counted twice."""
    isa = current()
    if fft.applicable(problem, isa) is None:
        able, forms = fft.able_forms(problem)
        for index, tiles, count, forward, backward in zip(
            able, forms.tiles, forms.planes, forms.forward, forms.backward, strict=True
        ):
            form = fft.FORMS[index]
            out = fft.outputs(problem, *form[:2])
            assert tiles == transformed.tile_grid(problem, out)[2] and count == fft.planes(*form).count
            assert (forward, backward) == fft.operations(*form, out[0])
    if winograd.applicable(problem, isa) is None:
        sizes = winograd_tiles.figures_of(problem.r, problem.s)[0]
        able, forms = winograd_tiles.able_forms(problem)
        found = winograd_tiles.tile_sizes(problem)
        few = [size for size in found if size in {sizes[index] for index in able}]
        assert set(found) - set(few) <= set(winograd_tiles.figures_of(problem.r, problem.s, closed=True)[0])
        for index, tiles, count in zip(able, forms.tiles, forms.planes, strict=True):
            assert tiles == transformed.tile_grid(problem, sizes[index], problem.dilation)[2]
            assert count == (a := winograd_tiles.outer(problem, sizes[index]))[0] * a[1]
        assert len(set(found)) == len(found) <= len({frozenset(size) for size in few}) + 1


def test_tiles_are_ranked_once_for_all_layouts():
    tiling._best.cache_clear()
    problem = replace(PROBLEM, n=5)  # about which nobody asked before
    model.ranking(problem)
    before = tiling._best.cache_info().misses
    for first, second in itertools.product((BLOCKED, "NCHW", "NHWC"), repeat=2):
        model.ranking(replace(problem, in_layout=first, out_layout=second))
    assert before > 0 and tiling._best.cache_info().misses == before
