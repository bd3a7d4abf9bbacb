"""Tests and random problems on an emulated ARM: who compiles their kernels, who runs them, and that both mean the same
ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import arm
import cpus
import pytest

from baselib.interpreter import python
from baselib.paths import VARIABLE as CACHE
from bench.packs.__main__ import collected
from bench.packs.features import environment
from cpuconv.runtime import target
from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.loading import object_file
from support import emulated
from support.running import processes

CLASS = emulated.CLASSES["neoverse-v1"]
not_emulated = pytest.mark.skipif("CPUCONV_LAUNCHER" in os.environ, reason="an emulated compiler takes minutes")


def test_problems_are_compiled_here_and_run_by_an_emulator(tmp_path: Path, monkeypatch, capsys) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []

    def ended(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess:
        ran.append((command, env))
        return subprocess.CompletedProcess(command, len(ran) == 1)

    monkeypatch.setattr(subprocess, "run", ended)
    monkeypatch.setattr(arm, "root", lambda: tmp_path)
    assert cpus.main(["--arm", "--problems", "--cpus", CLASS.name, "--count", "3"]) == cpus.FAILED  # one of both
    (here, mine), (there, its) = ran
    assert here[:-3] == cpus.python() and there[:-3] == [str(tmp_path / f"python-{CLASS.name}")]
    assert here[-3:] == there[-3:] == [str(cpus.TESTS / "random_problems.py"), "--count", "3"]
    assert mine == its and mine.items() >= {**environment(CLASS), emulated.VARIABLE: CLASS.name}.items()
    assert cpus.main(["--arm", "--problems"]) == cpus.PASSED and len(ran) == 2 + 2 * len(emulated.CLASSES)
    for wrong in (["--problems"], ["--arm", "--problems", "--slice"], ["--arm", "--problems", "--cpus", "znver4"]):
        with pytest.raises(SystemExit):
            cpus.main(wrong)
    assert "argument --problems: with --arm" in capsys.readouterr().err


def test_kernels_of_tests_are_compiled_here_too(tmp_path: Path, monkeypatch) -> None:
    """What the process that compiles says counts for nothing; tests of processes are the emulator's alone."""
    ran: list[tuple[list[str], dict[str, str]]] = []
    codes: list[int] = []

    def ended(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess:
        ran.append((command, env))
        return subprocess.CompletedProcess(command, codes.pop(0) if codes else 0)

    monkeypatch.setattr(subprocess, "run", ended)
    monkeypatch.setattr(arm, "root", lambda: tmp_path)
    files = ["tests/project/test_cpus.py", "tests/solvers/test_fft.py", "-x"]
    for each, code in (([1, 0], cpus.PASSED), ([0, 1], cpus.FAILED)):
        codes[:] = each
        ran.clear()
        assert cpus.main(["--arm", "--cpus", CLASS.name, *files]) == code
        (here, mine), (there, its) = ran
        assert here[: len(cpus.python())] == cpus.python() and there[0] == str(tmp_path / f"python-{CLASS.name}")
        assert not {files[0]} & {*here} and {*files[1:]} <= {*here} and {*files} <= {*there}
        assert mine.items() >= {**environment(CLASS), emulated.VARIABLE: CLASS.name}.items()
        assert its.items() >= {(name, mine[name]) for name in (*environment(CLASS), "CPUCONV_TEST_CACHE")}
    ran.clear()
    assert cpus.main(["--arm", "--cpus", CLASS.name, files[0]]) == cpus.PASSED and len(ran) == 1
    ran.clear()
    assert cpus.main(["--arm", "--cpus", CLASS.name]) == cpus.PASSED and {*cpus.COMPILED_HERE} <= {*ran[0][0]}


@not_emulated
@pytest.mark.skipif(sys.platform != "linux", reason="kernels of ARM are compiled as Linux loads them")
def test_tests_call_plans_where_nothing_runs(tmp_path: Path, environ: dict[str, str]) -> None:
    """The whole test of a solver passes: what compares results compares nothing, and all kernels are compiled."""
    variables = {**environment(CLASS), emulated.VARIABLE: CLASS.name, "CPUCONV_TEST_CACHE": str(tmp_path)}
    test = "tests/solvers/test_solvers.py::test_edges_of_a_tile[depthwise]"
    command = python("-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    done = subprocess.run(command, env={**environ, **variables}, cwd=processes.ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    names = [path.stem for path in tmp_path.glob("kernels/*/*.o")]
    found = [object_file.read(content.partition(b"\0")[2]).machine for content in collected(tmp_path, names).values()]
    assert len(found) > 2 and {*found} == {object_file.ARM}


@not_emulated
@pytest.mark.skipif(sys.platform != "linux", reason="kernels of ARM are compiled as Linux loads them")
def test_an_emulated_process_finds_what_was_compiled(tmp_path: Path, monkeypatch) -> None:
    variables = {**environment(CLASS), emulated.VARIABLE: CLASS.name, CACHE: str(tmp_path)}
    asked = ["--types", "int8", "--layouts", "NHWC", "--first", "9", "--count", "1", "--json", "-"]
    said = processes.run(str(cpus.TESTS / "random_problems.py"), *asked, **variables).stdout
    told = json.loads(said[said.index("{") :])
    assert told["isa"] == "neon" and {"sdot", "smmla"} <= {*told["dots"]} and not told["judged"]
    assert "1 plans that were not run" in said
    names = [path.stem for path in tmp_path.glob("kernels/*/*.o")]
    assert told["runs"][0]["compiled"] == len(names) > 0 and not told["runs"][0]["failed"]
    for content in collected(tmp_path, names).values():
        assert object_file.read(content.partition(b"\0")[2]).machine == object_file.ARM
    # What the other process asks of its machine is answered by the variables alone.
    monkeypatch.setattr(target.platform, "machine", lambda: CLASS.machine)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    target.target.cache_clear()
    try:
        assert not emulated.only_compiles() and emulated.cpu() == CLASS
        assert [*(tmp_path / "kernels").glob("*/*.o")][0].parent == kernel_files.folder.__wrapped__().path
    finally:
        target.target.cache_clear()
