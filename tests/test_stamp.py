"""What a kernel is made from, and what an edit of one file makes stale."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from autotune.interpreter import python
from cpuconv.runtime import stamp
from cpuconv.runtime.stamp import imported, made_from
from cpuconv.solvers import BY_NAME

MODULES = sorted(stamp._files())


def by_ast(module: str) -> Iterator[str]:
    known = stamp._files()
    for node in ast.walk(ast.parse(known[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                yield inner if inner in known else node.module


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_those_that_python_sees(module: str) -> None:
    assert imported(module) == set(by_ast(module)) & set(MODULES)


def test_solvers_are_made_from_their_own_files_and_what_they_share() -> None:
    for name, solver in BY_NAME.items():
        found = made_from(solver.__name__)
        assert {solver.__name__, "cpuconv.solvers.shared.base", "cpuconv.runtime.kernel", "cpuconv.isa.table"} <= found
        assert not found & {other.__name__ for other in BY_NAME.values() if other is not solver}, name
    assert "cpuconv.micro.winograd" in made_from("cpuconv.solvers.winograd")
    assert "cpuconv.micro.winograd" not in made_from("cpuconv.solvers.fft")
    assert made_from("elsewhere") == set(MODULES)


TOLD = """
import json, sys
import numpy as np
import cpuconv
from autotune.machine.device import fingerprint
from autotune.store.store import Row, Store
from cpuconv.choice import tuned
from cpuconv.recipe import Candidate
from cpuconv.runtime.cache import Statistics
from cpuconv.choice.select import Limits, by_model
from cpuconv.tuning.workload import workload

problem = cpuconv.ConvProblem(1, 16, 12, 12, 16, 3, 3, pads=(1, 1, 1, 1))
store = Store()
for solver in ("direct", "winograd", "im2col"):
    name = str(by_model(problem, Limits(), f"{solver}("))
    if sys.argv[1] == "put":
        sources = workload.sources_of(name)
        store.put([Row(fingerprint().key, problem.key, name, sources, "ok", median=1e-3, score=1e-3)])
    x, w = np.ones(problem.in_shape, np.float32), np.ones(problem.weight_shape, np.float32)
    cpuconv.plan(x.shape, w, padding=1, threads=1, algorithm=name)(x)
current = [each.row.candidate for each in tuned.rows(problem) if each.current]
found = {Candidate.parse(name).solver.NAME for name in current}
print(json.dumps({"found": sorted(found), "compiled": Statistics.compiled}))
"""


def test_an_edit_makes_stale_what_follows_from_it(environ: dict[str, str], tmp_path: Path) -> None:
    """Rows and compiled kernels of the edited solver go, and no others."""
    for package in ("cpuconv", "autotune", "layouts"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    variables = {**environ, "PYTHONPATH": str(tmp_path), "CPUCONV_CACHE_DIR": str(tmp_path / "cache")}
    kernels = Path(os.environ["CPUCONV_CACHE_DIR"]) / "kernels"
    kernels.mkdir(exist_ok=True)  # the first test of a session finds none
    shutil.copytree(kernels, tmp_path / "cache" / "kernels")

    def tell(what: str) -> dict:
        command = python("-c", TOLD, what)
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def edit(path: str) -> None:
        with (tmp_path / "cpuconv" / path).open("a") as file:
            file.write("\n# edited\n")

    assert tell("put")["found"] == ["direct", "im2col", "winograd"]
    assert tell("ask") == {"found": ["direct", "im2col", "winograd"], "compiled": 0}
    edit("solvers/direct.py")
    assert tell("ask") == {"found": ["im2col", "winograd"], "compiled": 0}
    edit("micro/winograd.py")
    assert tell("ask") == {"found": ["im2col"], "compiled": 3}  # the transforms: forward, back, of weights
    edit("runtime/kernel.py")
    assert tell("ask")["found"] == []
