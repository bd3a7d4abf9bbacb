"""How helper processes start: as this interpreter, with nothing of the current folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baselib.interpreter import VARIABLE, python, python_main
from support.running.processes import ROOT

TELLS = """
import json, sys
import numpy

def main(*given):
    names = "optimize dont_write_bytecode no_user_site ignore_environment isolated utf8_mode dev_mode".split()
    told = {"flags": {name: int(getattr(sys.flags, name)) for name in names}, "warned": sys.warnoptions}
    print(json.dumps({**told, "path": sys.path, "given": given, "numpy": numpy.__file__}))
"""
STARTS = """
import sys
place, where = sys.argv[1:]
sys.path[:] = [where] + [each for each in sys.path if each]
import pathlib, subprocess
from baselib.interpreter import python_main
sys.path[:] = ["", ".", pathlib.Path(place), *sys.path, 7]
print(subprocess.run(python_main("tells", "a", "b c"), capture_output=True, text=True, check=True).stdout)
"""
HOSTILE = ("json", "numpy", "importlib", "runpy", "subprocess", "encodings", "sitecustomize", "pathlib", "tells")
"""Modules of the current folder; each says so and ends the process."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = tmp_path / "current"
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(f"import os\nopen('{name} was run', 'w')\nos._exit(9)\n")
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "a ünusual, 'place'"
    folder.mkdir()
    (folder / "tells.py").write_text(TELLS)
    return folder


def started(hostile: Path, place: Path, *flags: str) -> dict:
    """What a helper says that was started by an interpreter with these flags in a hostile folder."""
    launcher = python()
    command = [*launcher, *flags, "-c", STARTS, str(place), str(ROOT)]
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(command, cwd=hostile, env=environ, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert {each.name for each in hostile.iterdir()} == {f"{name}.py" for name in HOSTILE}
    return json.loads(done.stdout)


@pytest.mark.parametrize("flags", [(), ("-I",), ("-E", "-s")], ids=" ".join)
def test_nothing_of_the_current_folder_is_run(hostile: Path, place: Path, flags: tuple[str, ...]) -> None:
    said = started(hostile, place, *flags)
    assert said["given"] == ["a", "b c"] and str(hostile) not in said["numpy"]
    assert said["path"][0] == str(place) and str(ROOT) in said["path"]  # a `Path` object, which is no text
    assert not {"", ".", str(hostile)} & {*said["path"]}


def test_flags_are_those_of_the_parent(hostile: Path, place: Path) -> None:
    plain = started(hostile, place)
    assert not any(plain["flags"].values()) and not plain["warned"]
    said = started(hostile, place, "-I", "-OO", "-B", "-W", "ignore::DeprecationWarning", "-X", "utf8")
    assert said["flags"] == {
        "optimize": 2,
        "dont_write_bytecode": 1,
        "no_user_site": 1,
        "ignore_environment": 1,
        "isolated": 1,
        "utf8_mode": 1,
        "dev_mode": 0,
    }
    assert said["warned"] == ["ignore::DeprecationWarning"]
    assert started(hostile, place, "-X", "dev")["flags"]["dev_mode"] == 1


def test_a_launcher_comes_first_and_names_for_import_hooks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "emulate -cpu 'a b'")
    monkeypatch.setattr(sys, "path", ["__editable__.hook", b"/bytes", "", "tests/../tests"])
    command = python_main("module", "argument")
    assert command[:4] == ["emulate", "-cpu", "a b", python()[-1]] and command[-2:] == ["module", "argument"]
    boot = command[command.index("-c") + 1]
    assert str(["__editable__.hook", "/bytes", os.path.abspath("tests")]) in boot
