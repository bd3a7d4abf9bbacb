"""An algorithm is one file and one line: a made-up one, which is in no other table, works everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from baselib.interpreter import python
from support.running.processes import ROOT, SHIPPED

pytest.importorskip("onnx")

MADE_UP = '''

import dataclasses

_whole = SOLVER.cost


def bound(problem, machine):
    return 0.0


def cost(problem, params, machine):
    """As of an algorithm that beats all others."""
    found = _whole(problem, params, machine)
    return dataclasses.replace(found, estimate=found.estimate / 1000, bound=found.bound / 1000)


def least_work(problem, params):
    return 123, 456


SOLVER = dataclasses.replace(SOLVER, name="made_up", bound=bound, cost=cost, least_work=least_work)
'''

USED = """
import json, sys
import numpy as np
import cpuconv
from autotune.machine.roofline import Level, Roofs, bounds
from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.problem import reference
from cpuconv.tuning.workload import workload
from support import models, oracle, packed

problem = cpuconv.ConvProblem(1, 20, 9, 11, 40, 3, 3, pads=(1, 1, 1, 1))
x, w = oracle.normal(problem.in_shape), oracle.normal(problem.weight_shape, 1) / 13
plan = cpuconv.plan(x.shape, w, padding=1, threads=1, strategy="heuristic")
candidate = Candidate.parse(plan.algorithm)
expected = reference.conv2d(x, w, None, problem)
form = candidate.packing(problem)
work = workload.work(problem.key, plan.algorithm)
trial = workload.prepare(problem.key, plan.algorithm)
trial.run()
path = models.save(sys.argv[1], [models.conv(pads=[1, 1, 1, 1])], {"x": x.shape}, {"w": w.shape})
model = cpuconv.compile(path, strategy="heuristic", threads=1)
model.save(sys.argv[1] + ".cpuconv")
loaded = cpuconv.load(sys.argv[1] + ".cpuconv")
print(json.dumps({
    "plan": candidate.solver.name,
    "right": bool(reference.relative_error(plan(x), expected) < 1e-4),
    "explain": "made_up" in str(cpuconv.explain(x.shape, w.shape, padding=1, threads=1, strategy="heuristic")),
    "packed": bool((form.pack(w) == packed.expected(problem, candidate, current(), w)).all()),
    "work": [work.flops, work.weights],
    "roofs": len(bounds(work, Roofs(100.0, 100.0, (Level("memory", float("inf"), 10.0),)))),
    "tuner": workload.candidates(problem.key, "normal")[0][0].name.partition("(")[0],
    "sources": workload.sources_of(plan.algorithm) in workload.sources,
    "network": "made_up" in str(model.explain()),
    "saved": "made_up" in str(loaded.explain()),
    "same": bool((next(iter(model.run({"x": x}).values())) == next(iter(loaded.run({"x": x}).values()))).all()),
    "home": oracle.kind(candidate.solver),
}))
"""


def test_a_made_up_algorithm(environ: dict[str, str], tmp_path: Path) -> None:
    """A copy of one under another name that states other costs is chosen, explained, packed, tuned and saved."""
    for package in SHIPPED:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    solvers = tmp_path / "cpuconv" / "solvers"
    made_up = (solvers / "direct.py").read_text()
    (solvers / "made_up.py").write_text(made_up + MADE_UP)
    table = solvers / "__init__.py"
    # Its import, and its line.
    table.write_text(table.read_text().replace("    direct,\n", "    direct,\n    made_up,\n"))
    table.write_text(table.read_text().replace("    direct.SOLVER,\n", "    direct.SOLVER,\n    made_up.SOLVER,\n"))
    variables = {**environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "tests")))}
    command = python("-c", USED, str(tmp_path / "net.onnx"))
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    names = {told.pop(key) for key in ("plan", "tuner")}
    assert names == {"made_up"} and told.pop("work") == [123, 456] and told.pop("home") == "direct"
    assert told.pop("roofs") > 1 and all(value is True for value in told.values()), told
