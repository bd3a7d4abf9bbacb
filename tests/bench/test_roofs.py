"""The roofs as the benchmark measures and reports them."""

from __future__ import annotations

import math

import pytest

from autotune.machine.roofline import FMA
from bench import roofs
from bench.results import LineResult
from support.tuner.bench_fakes import LINE, ROOFS, SMALL, measurement

DIRECT = "direct(v=1,rows=1,cols=6,block=6)"


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
