"""The fuzzer: its seeds are read, changed ones are refused or read, and what it ends with."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("onnx")

import fuzz  # noqa: E402

from baselib.interpreter import python  # noqa: E402
from support.damage.fuzz_targets import TARGETS, make_corpus  # noqa: E402

HERE = Path(fuzz.__file__)
HAS_ATHERIS = importlib.util.find_spec("atheris") is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read_and_changed_ones_end_in_no_other_error(name, tmp_path):
    target = TARGETS[name]
    assert make_corpus(name, tmp_path) == len(list(tmp_path.iterdir())) >= 2
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        data = path.read_bytes()
        target.read(data)
        changed = [target.change(data, 40 * number + at) for at in range(8)]
        assert any(other != data for other in changed)
        for other in changed:
            target.read(other)


@pytest.mark.parametrize("name", TARGETS)
def test_changes_keep_to_their_number(name, tmp_path):
    """So that a run of the fuzzer with a seed is the same run again."""
    make_corpus(name, tmp_path)
    data = (tmp_path / "seed-0").read_bytes()
    assert [TARGETS[name].change(data, at) for at in range(20)] == [TARGETS[name].change(data, at) for at in range(20)]


def test_the_targets_are_those_that_are_run():
    assert fuzz._SHARES.keys() == TARGETS.keys() and sum(fuzz._SHARES.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("script", "code"),
    [("print('Done 7 runs in 1 second(s)', file=sys.stderr)", 0), ("pass", 1), ("raise ValueError('wrong')", 1),
     ("print('Done 7 runs in 1 second(s)', file=sys.stderr); sys.exit(77)", 1)],
)  # fmt: skip
def test_a_target_that_fails_or_does_not_run_is_told(script, code, tmp_path, monkeypatch, capsys):
    (tmp_path / "child.py").write_text(f"import sys\n{script}\n")
    monkeypatch.setattr(fuzz, "__file__", str(tmp_path / "child.py"))
    options = argparse.Namespace(seconds=1, only="onnx", corpus=tmp_path, crashes=tmp_path, seed=1)
    assert fuzz._run("onnx", options) == code
    assert ("FAILED" in capsys.readouterr().out) == bool(code)


def test_without_atheris_it_says_so(tmp_path):
    (tmp_path / "atheris.py").write_text("raise ImportError('not here')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [*python(), str(HERE), "--seconds", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert ran.returncode == 77 and ran.stdout.startswith("NOT FUZZED: the package atheris")


@pytest.mark.skipif(not HAS_ATHERIS, reason="atheris is not installed")
def test_a_second_of_fuzzing(tmp_path):
    command = [*python(), str(HERE), "--only", "problem", "--seconds", "1", "--crashes", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0 and "problem: " in ran.stdout, ran.stdout
