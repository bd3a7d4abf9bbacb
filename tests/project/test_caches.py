"""What sessions of tests keep: kernels, within a bound; and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baselib.interpreter import python
from support.running import kept
from support.running.processes import ROOT

ONE = "tests/runtime/test_code.py::test_a_plan_keeps_its_kernels"


def test_the_next_session_compiles_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    """And stores, which are not kept, leave nothing behind."""
    kept, temporary = tmp_path / "kept", tmp_path / "temporary"
    temporary.mkdir()
    found = []
    for _ in range(2):
        variables = {"CPUCONV_TEST_CACHE": str(kept), "TMPDIR": str(temporary), "PYTEST_ADDOPTS": ""}
        command = python("-m", "pytest", "-q", "-p", "no:cacheprovider", ONE)
        done = subprocess.run(command, env={**environ, **variables}, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        found.append({path.name: path.stat().st_mtime_ns for path in kept.glob("kernels/*/*.o")})
        assert not [*temporary.glob("cpuconv-tests-*")]
    assert found[0] and found[0] == found[1]
    assert [path.name for path in kept.iterdir()] == ["kernels"]


def test_kernels_are_kept_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CPUCONV_TEST_CACHE", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert kept.kept() == tmp_path / "cpuconv-tests"
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert kept.kept() is None  # of the system: nothing is written there
    monkeypatch.setenv("CPUCONV_TEST_CACHE", str(tmp_path / "there"))
    assert kept.kept() == tmp_path / "there"


def test_what_was_not_used_for_longest_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "kernels" / "a"
    folder.mkdir(parents=True)
    for age in range(6):
        path = folder / f"{age}.o"
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    os.utime(folder / "5.o", (2e9, 1e9 - 5))  # read again since

    def left() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    kept.prune(tmp_path, 600)
    assert len(left()) == 6
    kept.prune(tmp_path, 350)
    assert left() == ["0.o", "1.o", "5.o"]
    kept.prune(tmp_path, 0)
    assert left() == []
    kept.prune(tmp_path / "none", 0)
