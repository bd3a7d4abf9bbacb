"""What algorithms cannot avoid doing: by hand on small cases, and over every solver."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.machine.roofline import FMA, STORES, Work, bounds
from bench import shapes
from cpuconv.conv.least_work import touched_bytes, work
from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import BY_NAME, fft, winograd
from cpuconv.tuning.workload import workload
from support import oracle
from support.tuner.bench_fakes import ROOFS, SMALL

ISA = current()


def test_direct_algorithms_do_the_sums_own_work():
    """Those that say nothing else."""
    others = [solver for solver in oracle.SOLVERS if solver.least_work.__module__ == solver.module]
    assert winograd.SOLVER in others and fft.SOLVER in others
    for solver in oracle.SOLVERS:
        if solver in others:
            continue
        problem = oracle.home(solver)
        candidate = Candidate(solver, next(iter(solver.candidates(problem, ISA))))
        moved = problem.in_bytes, 4 * math.prod(problem.weight_shape), problem.out_bytes
        assert work(problem, candidate) == Work(problem.flops, *moved)


def test_winograd_and_fft_count_their_products():
    problem = ConvProblem(1, 32, 30, 27, 48, 3, 3)  # 28 x 25 outputs: 7 x 7 tiles of four
    moved = problem.in_bytes, problem.out_bytes
    found = work(problem, Candidate.parse("winograd(rows=4,cols=4,v=2,n=6,block=16,chunk=1)"))
    assert found == Work(2 * 36 * 49 * 32 * 48, moved[0], 4 * 36 * 32 * 48, moved[1])
    # Groups share no products, and tiles of dilated kernels are cut from each of the 2 x 3 shifted grids by itself.
    apart = ConvProblem(1, 32, 13, 14, 64, 3, 3, groups=2, dilation=(2, 3))  # 9 x 8 outputs
    found = work(apart, Candidate.parse("winograd(rows=2,cols=4,v=2,n=6,block=16,chunk=1)"))
    tiles = (3 + 2) * (1 + 1 + 1)  # of 5 and 4 rows by two, of 3, 3 and 2 columns by four
    assert found == Work(2 * 24 * tiles * 16 * 64, apart.in_bytes, 4 * 24 * 16 * 64, apart.out_bytes)
    # 8x8 inputs a tile give 6x6 outputs: 5 x 5 tiles; 4 real components and 60 more, half of them, of three products
    # and three planes, or four and two.
    for products, planes in ((3, 3), (4, 2)):
        found = work(problem, Candidate.parse(f"fft(rows=8,cols=8,products={products},v=2,n=6,block=16,chunk=1)"))
        flops, weights = 2 * (4 + 30 * products) * 25 * 32 * 48, 4 * (4 + 30 * planes) * 32 * 48
        assert found == Work(flops, moved[0], weights, moved[1])


@pytest.mark.parametrize(
    "types, dtype", [("f32", "float32"), ("bf16", "bfloat16"), ("u8:s8:u8", "int8"), ("s8", "int8")]
)
def test_work_is_of_the_type_that_a_solver_multiplies_in(types, dtype):
    problem = ConvProblem(1, 32, 30, 27, 48, 3, 3, types=Types.parse(types))
    direct = work(problem, Candidate.parse("direct(v=1,rows=1,cols=6,block=6)"))
    assert direct.dtype == dtype and direct.dtype in workload.dtypes
    assert direct.inputs == 32 * 30 * 27 * problem.types.x.bytes
    transformed = work(problem, Candidate.parse("winograd(rows=4,cols=4,v=2,n=6,block=16,chunk=1)"))
    assert transformed.dtype == "float32"  # whatever the problem's types


@pytest.mark.parametrize("line", shapes.load(), ids=lambda line: line.label)
def test_every_solvers_favourite_has_bounds(line):
    for solver in BY_NAME.values():
        if solver.applicable(line.problem, ISA) is None:
            candidate = Candidate(solver, next(iter(solver.candidates(line.problem, ISA))))
            done = work(line.problem, candidate)
            found = bounds(done, ROOFS)
            expected = {STORES} if ROOFS.peak(done.dtype) is None else {FMA, STORES}
            assert len(found) == 1 + len(expected) and min(found.values()) > 0 and expected <= set(found)


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
    assert touched_bytes(p) == 4 * p.n * p.c * read.sum()


def test_the_workload_knows_only_its_own_candidates():
    candidate = next(iter(winograd.candidates(ConvProblem(1, 32, 9, 9, 32, 3, 3), ISA)))
    problem = ConvProblem(1, 32, 9, 9, 32, 3, 3)
    name = str(Candidate(winograd.SOLVER, candidate))
    assert workload.work(problem.key, name) == work(problem, Candidate(winograd.SOLVER, candidate))
    assert workload.work(problem.key, "magic(v=1)") is None
    assert workload.work("no problem", name) is None
