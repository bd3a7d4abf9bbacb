"""`bench.loads` and `bench.scaling`: who does what of a kernel call, and what is predicted of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.machine.roofline import Level, Roofs
from bench import scaling
from bench.loads import Load, cut, load, shared
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Step
from cpuconv.problem.problem import ConvProblem
from support import oracle

amounts = st.lists(st.integers(0, 20), min_size=1, max_size=12).map(np.array)
ONE = scaling.Machines(Roofs(100.0, 100.0, (Level("L1", 3e4, 200.0), Level("memory", np.inf, 10.0))), 4)


@given(places=amounts, chunks=amounts, workers=st.integers(1, 9), each=st.integers(0, 8), prepared=st.booleans())
def test_all_units_are_done_once_and_places_prepared(places, chunks, workers, each, prepared):
    made = Load(places, chunks, 2.0, np.ones(places.size) if prepared else None, places.size, chunks.size)
    found = shared(made, workers, each)
    once = 2.0 * places.sum() * chunks.sum()
    assert once <= found.total <= once + (places.size * workers if prepared else 0)
    assert found.total / workers <= found.slowest + 1e-9 and found.slowest <= found.total
    assert found.bytes <= workers * (places.size + chunks.size)
    if workers == 1 or not each:
        assert found.slowest == found.total == made.total


def test_the_slowest_of_uneven_units():
    """Three units for two workers; with parts to take over, a long unit is compensated."""
    assert shared(Load(np.ones(3), np.ones(1)), 2, 1).share == pytest.approx(2 / 3)
    assert shared(Load(np.array([3, 1, 1, 1]), np.ones(1)), 2, 2).slowest == 3
    assert cut(7, 3).tolist() == [2, 2, 3]


@pytest.mark.usefixtures("small_work_is_shared")
@pytest.mark.parametrize("solver", oracle.SOLVERS, ids=lambda solver: solver.name)
def test_every_driver_is_known(solver):
    """Its number of units is the kernel's own, for which the steps were cut."""
    problem = replace(oracle.home(solver), threads=3)
    candidate = Candidate(solver, next(iter(solver.candidates(problem, current()))))
    steps = [step for step in assemble(problem, candidate).steps if step.parts]
    for step in steps:
        found = load(step)
        assert found.units > 1 and found.total > 0 and shared(found, 3, step.parts).slowest >= found.total / 3 - 1e-9
        assert found.units == _units(step)


def _units(step: Step) -> int:
    """As the driver of the step counts them."""
    names = {
        "convolve": "batch row_blocks column_blocks chunks",
        "tiled": "groups blocks chunks",
        "im2col": "batch groups blocks chunks",
        "planar": "batch groups panels chunks",
        "lanewise": "batch blocks row_blocks",
        "reorder": "units",
    }[step.kernel.name.rpartition(".")[2]]
    return int(np.prod([step.args[name] for name in names.split()]))


def test_predictions_hang_together(monkeypatch):
    problem = ConvProblem(1, 64, 28, 28, 64, 3, 3, pads=(1, 1, 1, 1), threads=8)
    found = scaling.convolution_on("a", problem, 1e-3, ONE)
    assert found.speed_up == pytest.approx(1e-3 / found.seconds) and found.efficiency == found.speed_up / 8
    assert found.balance > 0 and 1 / 8 - 1e-9 <= found.share <= 1
    monkeypatch.setattr(scaling, "join_seconds", lambda workers: float(workers))
    slow = scaling.convolution_on("a", problem, 1e-3, ONE)
    assert slow.bound_by == "barriers" and slow.seconds > 8


def test_a_command(capsys, tmp_path):
    path = tmp_path / "found.json"
    assert scaling.main(["--lines", "res5b_2a", "--workers", "4,8", "--json", str(path)]) == 0
    assert "res5b_2a" in capsys.readouterr().out
    lines = json.loads(path.read_text())["predicted"]["lines"]
    assert [line["workers"] for line in lines] == [4, 8] and all(line["seconds"] > 0 for line in lines)
