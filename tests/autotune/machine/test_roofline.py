"""Roofs, bounds and what a run is bound by, by hand on small cases."""

from __future__ import annotations

import math

import pytest

from autotune.machine.roofline import (
    BANDWIDTH,
    COMPUTE,
    FMA,
    MEMORY,
    OVERHEAD,
    REMEDIES,
    STORES,
    Level,
    Roofs,
    Work,
    bounds,
    classify,
    roofs_for,
)

KILO = 1 << 10
FIGURES = {"float32_gflops": 320.0, "l1_gbs": 200.0, "l2_gbs": 100.0, "dram_gbs": 10.0, "store_gbs": 160.0}
CACHES = {"L1d": 32 * KILO, "L2": 1024 * KILO, "L3": 32768 * KILO}
LEVELS = (Level("L1", 1000, 1000.0), Level("L2", 2000, 100.0), Level(MEMORY, math.inf, 10.0))
ROOFS = Roofs(100.0, 50.0, LEVELS)


def test_levels_from_the_probes_figures():
    made = Roofs.of(FIGURES, CACHES, threads=2)
    assert made.levels == (
        Level("L1", 64 * KILO, 200.0),  # each thread has its own
        Level("L2", 2048 * KILO, 100.0),
        Level("L3", 32768 * KILO, 100.0),  # shared, and not measured
        Level(MEMORY, math.inf, 10.0),
    )
    assert (made.fma_gflops, made.store_gbs) == (320.0, 160.0)
    assert made.to_dict()["levels"][3] == {"name": MEMORY, "size": None, "gbs": 10.0}
    with pytest.raises(ValueError, match="'float32_gflops', not None"):
        Roofs.of({"dram_gbs": 1.0, "store_gbs": 1.0}, CACHES, 1)


def test_peaks_of_other_data_types():
    made = Roofs.of(FIGURES | {"bfloat16_gflops": 640.0, "vpdpbusd_gflops": 1280.0}, CACHES, 1)
    assert (made.peak("float32"), made.peak("bfloat16"), made.peak("int8")) == (320.0, 640.0, None)
    assert made.to_dict()["peaks"] == {"bfloat16": 640.0, "vpdpbusd": 1280.0}
    other = Roofs.of(FIGURES | {"bfloat16_gflops": 600.0, "int8_gflops": 1000.0}, CACHES, 1)
    assert dict(made.best(other).peaks) == {"bfloat16": 640.0, "vpdpbusd": 1280.0, "int8": 1000.0}
    with pytest.raises(ValueError, match="'int8_gflops', not -1"):
        Roofs.of(FIGURES | {"int8_gflops": -1}, CACHES, 1)


def test_a_run_is_held_to_the_peak_of_its_data_type():
    roofs = Roofs(100.0, 50.0, LEVELS, (("int8", 400.0),))
    work = Work(10_000, 400, 300, 100, "int8")
    assert bounds(work, roofs)[FMA] == pytest.approx(25e-9)
    assert classify(work, roofs, 50e-9).share == pytest.approx(0.5)
    unknown = Work(10_000, 400, 300, 100, "bfloat16")
    assert FMA not in bounds(unknown, roofs) and classify(unknown, roofs, 50e-9) is None


@pytest.mark.parametrize("kept", [{}, {"2": FIGURES}, {"1": None}, {"1": 3.0}, {"1": {**FIGURES, "dram_gbs": -1.0}}])
def test_roofs_that_are_not_known(kept):
    assert roofs_for({"roofs": kept, "caches": CACHES}, 1) is None
    assert roofs_for({"roofs": {**kept, "3": FIGURES}, "caches": CACHES}, 3) == Roofs.of(FIGURES, CACHES, 3)
    assert roofs_for({}, 1) is None


def test_the_higher_of_two_measurements_counts():
    other = Roofs(90.0, 110.0, (Level("L1", 1000, 600.0), Level("L2", 2000, 200.0), Level(MEMORY, math.inf, 9.0)))
    levels = (Level("L1", 1000, 1000.0), Level("L2", 2000, 200.0), Level(MEMORY, math.inf, 10.0))
    assert ROOFS.best(other) == Roofs(100.0, 110.0, levels) == other.best(ROOFS)


@pytest.mark.parametrize(
    ("work", "level", "nanoseconds"),
    [
        (Work(1, 400, 300, 196), "L1", 0.896),
        (Work(1, 1500, 300, 1016), "L2", 1 + 18.16),
        (Work(1, 5000, 300, 1356), MEMORY, 1 + 20 + 365.6),
    ],
)
def test_bytes_come_from_the_closest_levels_that_hold_them(work, level, nanoseconds):
    assert bounds(work, ROOFS)[level] == pytest.approx(nanoseconds * 1e-9)


def test_cold_weights_come_from_memory():
    work = Work(5000, 400, 300, 100)
    assert bounds(work, ROOFS) == pytest.approx({FMA: 50e-9, "L1": 0.8e-9, STORES: 2e-9})
    cold = bounds(work, ROOFS, cold=True)
    assert cold == pytest.approx({FMA: 50e-9, MEMORY: 30.5e-9, STORES: 2e-9})
    assert classify(work, ROOFS, 100e-9).kind == COMPUTE
    assert classify(Work(1000, 400, 300, 100), ROOFS, 40e-9, cold=True).roof == MEMORY


@pytest.mark.parametrize(
    ("work", "nanoseconds", "kind", "roof", "share"),
    [
        (Work(10_000, 400, 300, 100), 125.0, COMPUTE, FMA, 0.8),
        (Work(10_000, 400, 300, 100), 205.1, COMPUTE, FMA, 100 / 205.1),  # all roofs together: 102.8
        (Work(10_000, 400, 300, 100), 206.0, OVERHEAD, FMA, 100 / 206),
        (Work(100, 5000, 300, 1356), 400.0, BANDWIDTH, MEMORY, 386.6 / 400),
        (Work(100, 2000, 0, 0), 20.0, BANDWIDTH, "L2", 11 / 20),
        (Work(100, 100, 0, 800), 20.0, BANDWIDTH, STORES, 16 / 20),
    ],
)
def test_what_a_run_is_bound_by(work, nanoseconds, kind, roof, share):
    found = classify(work, ROOFS, nanoseconds * 1e-9)
    assert (found.kind, found.roof) == (kind, roof)
    assert found.share == pytest.approx(share)
    assert str(found) == (f"bandwidth ({roof})" if kind == BANDWIDTH else kind)
    assert found.remedy == REMEDIES[OVERHEAD if kind == OVERHEAD else roof]


def test_every_class_has_its_remedy():
    assert set(REMEDIES) == {FMA, "L1", "L2", "L3", MEMORY, STORES, OVERHEAD}
    assert len(set(REMEDIES.values())) == len(REMEDIES)
