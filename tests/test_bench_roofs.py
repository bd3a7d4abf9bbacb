"""The bounds that lines are held against: by hand on small cases, and over every solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bench_fakes import LINE, ROOFS, SMALL, measurement

from bench import roofs, shapes
from bench.results import LineResult
from bench.roofs import FMA, STORES, Level, Roofs, Work
from cpuconv.isa import current
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate
from cpuconv.solvers import BY_NAME, TABLE, fft, winograd

ISA = current()
DIRECT = "direct(v=1,rows=1,cols=6,block=6)"
KILO = 1 << 10


def test_levels_from_the_probes_figures():
    found = {"fma_gflops": 320.0, "l1_gbs": 200.0, "l2_gbs": 100.0, "dram_gbs": 10.0}
    caches = {"L1d": 32 * KILO, "L2": 1024 * KILO, "L3": 32768 * KILO}
    made = roofs.from_probe(found, caches, threads=2)
    assert made.levels == (
        Level("L1", 64 * KILO, 200.0),  # each thread has its own
        Level("L2", 2048 * KILO, 100.0),
        Level("L3", 32768 * KILO, 100.0),  # shared, and not measured
        Level("memory", math.inf, 10.0),
    )
    assert made.store_gbs == pytest.approx(320.0 * 4 / (2 * ISA.fma_rate * ISA.store_cost))
    assert made.to_dict()["levels"][3] == {"name": "memory", "size": None, "gbs": 10.0}


def test_the_higher_of_two_measurements_counts():
    other = Roofs(90.0, 110.0, (Level("L2", 1 << 20, 60.0), Level("memory", math.inf, 9.0)))
    best = ROOFS.best(other)
    assert best == Roofs(100.0, 110.0, (Level("L2", 1 << 20, 60.0), Level("memory", math.inf, 10.0)))
    assert best == other.best(ROOFS)


def test_direct_algorithms_do_the_sums_own_work():
    for solver in TABLE:
        if solver in (winograd, fft):
            continue
        channels = 4 if solver.NAME == "grouped" else 1 if solver.NAME == "depthwise" else 32
        size = 1 if solver.NAME == "pointwise" else 3
        groups = 32 // channels
        problem = ConvProblem(2, 32, 9, 9, 32, size, size, groups=groups)
        assert solver.applicable(problem, ISA) is None
        name = str(Candidate(solver, next(iter(solver.candidates(problem, ISA)))))
        assert roofs.work(problem, name) == Work(problem.flops // 2, 32 * channels * size * size)


def test_winograd_and_fft_count_their_products():
    problem = ConvProblem(1, 32, 30, 27, 48, 3, 3)  # 28 x 25 outputs: 7 x 7 tiles of four
    found = roofs.work(problem, "winograd(rows=4,cols=4,v=2,n=6,block=16,chunk=1)")
    assert found == Work(36 * 49 * 32 * 48, 36 * 32 * 48)
    # 8x8 inputs a tile give 6x6 outputs: 5 x 5 tiles; 4 real components and 60 more, half of them, of three products.
    found = roofs.work(problem, "fft(rows=8,cols=8,v=2,n=6,block=16,chunk=1)")
    assert found == Work((4 + 30 * 3) * 25 * 32 * 48, (4 + 30 * 3) * 32 * 48)


@pytest.mark.parametrize("line", shapes.load(), ids=lambda line: line.label)
def test_every_solvers_favourite_has_bounds(line):
    for solver in BY_NAME.values():
        if solver.applicable(line.problem, ISA) is None:
            name = str(Candidate(solver, next(iter(solver.candidates(line.problem, ISA)))))
            found = roofs.bounds(line.problem, name, ROOFS)
            assert len(found) == 3 and min(found.values()) > 0 and {FMA, STORES} <= set(found)


@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        ConvProblem(1, 2, 9, 8, 3, 1, 1, stride=(2, 3)),
        ConvProblem(2, 2, 11, 10, 4, 3, 2, stride=(3, 4), dilation=(3, 1), pads=(2, 1, 0, 1)),
        ConvProblem(1, 1, 12, 12, 1, 2, 2, dilation=(5, 7)),
    ],
    ids=str,
)
def test_touched_bytes_against_marking_every_read(problem):
    p = problem
    read = np.zeros((p.h, p.w), bool)
    for oh in range(p.oh):
        for ow in range(p.ow):
            for r in range(p.r):
                for s in range(p.s):
                    h = oh * p.stride[0] + r * p.dilation[0] - p.pads[0]
                    w = ow * p.stride[1] + s * p.dilation[1] - p.pads[2]
                    if 0 <= h < p.h and 0 <= w < p.w:
                        read[h, w] = True
    assert roofs.touched_bytes(p) == 4 * p.n * p.c * read.sum()


def test_bytes_come_from_the_closest_levels_that_hold_them():
    levels = (Level("L1", 1000, 1000.0), Level("L2", 2000, 100.0), Level("memory", math.inf, 10.0))
    machine = Roofs(1e3, 1e3, levels)
    pointwise = "pointwise(v=1,rows=1,cols=6,block=0)"

    def traffic(h: int) -> dict[str, float]:
        problem = ConvProblem(1, 8, h, 1, 8, 1, 1)  # 64·h bytes of activations, 256 of weights
        return {name: s for name, s in roofs.bounds(problem, pointwise, machine).items() if name not in (FMA, STORES)}

    assert traffic(10) == {"L1": pytest.approx(896e-12)}
    assert traffic(40) == {"L2": pytest.approx(1e-9 + 1816e-11)}
    assert traffic(100) == {"memory": pytest.approx(1e-9 + 20e-9 + 3656e-10)}


def test_shares_of_a_line_are_medians_over_runs_and_the_largest_binds():
    seconds = SMALL.flops / 100e9  # at the peak
    runs = [measurement(ROOFS, DIRECT, cpuconv=[[factor * seconds]]) for factor in (2.0, 4.0, 10.0)]
    found = LineResult(LINE, runs).shares()
    assert next(iter(found)) == FMA and found[FMA] == pytest.approx(0.25)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert LineResult(LINE, [measurement(None, DIRECT, cpuconv=[[1.0]])]).shares() == {}
    assert LineResult(LINE, [measurement(ROOFS, torch=[[1.0]])]).shares() == {}


def test_measured_roofs():
    found = roofs.measure(1)
    assert found.fma_gflops > 0 and found.store_gbs > 0 and found.levels[-1].name == "memory"
    assert all(level.gbs > 0 for level in found.levels)
    sizes = [level.size for level in found.levels]
    assert sizes == sorted(sizes) and math.isinf(sizes[-1])
