"""The packing report: what it prints, and that its copy copies."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np

from bench import packing, shapes
from cpuconv.isa import current
from cpuconv.kernels.packing.packing import TabledPacking
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE


def test_a_small_run(capsys, tmp_path):
    target = tmp_path / "packing.json"
    assert packing.main(["--pattern", "dw32$|res2a_2a", "--threads", "2", "--json", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "mobilenetv2:dw32" in printed and "less:" in printed and "geomean" in printed
    content = json.loads(target.read_text())
    assert content["threads"] == 2 and content["plans"] == []
    for form in content["forms"]:
        assert form["solver"] in {solver.name for solver in TABLE}
        assert form["pack"] > 0 and form["copy"] > 0 and form["written"] >= form["read"] > 0


def test_every_solver_that_runs_a_line_is_there(monkeypatch):
    monkeypatch.setattr(packing, "SECONDS", 0)
    (line,) = shapes.load(pattern="res2a_2b")
    found = list(packing.figures([line], 1))
    able = [solver.name for solver in TABLE if solver.applicable(line.problem, current()) is None]
    assert [figure.solver for figure in found] == able and "winograd" in able
    assert all(figure.read == line.problem.weight_bytes for figure in found)


def test_the_copy_moves_as_many_bytes():
    problem = ConvProblem(1, 5, 8, 8, 7, 3, 3)
    weight = packing.random_weight(problem)

    for size in (weight.nbytes, 7 * weight.nbytes // 2):
        for threads in (1, 2):
            copied = packing.copier(weight, SimpleNamespace(size=size), threads)()
            assert 0 <= copied.nbytes - size < 64
            np.testing.assert_array_equal(copied, 1)


def test_a_plan_of_a_problem():
    problem = ConvProblem(1, 6, 9, 8, 8, 3, 3, (2, 1), (1, 1, 0, 1), groups=2)
    assert packing.plan_of(problem, packing.random_weight(problem)).problem == problem


def test_every_round_packs_the_weights_of_every_plan(monkeypatch):
    problem = ConvProblem(1, 6, 9, 8, 8, 3, 3)
    entries = [SimpleNamespace(problem=problem, count=2)]
    monkeypatch.setattr(packing.sources, "load", lambda path, threads: entries)
    packed, pack = [], TabledPacking.pack
    monkeypatch.setattr(TabledPacking, "pack", lambda form, *args: packed.append(form) or pack(form, *args))

    found = packing.plans_of("resnet50", 1)
    assert found.count == 2 and found.seconds > 0 and found.packing > 0
    alone = 2 * packing.PLAN_ROUNDS
    assert len(packed) - alone == 2 * (1 + packing.PLAN_ROUNDS)
