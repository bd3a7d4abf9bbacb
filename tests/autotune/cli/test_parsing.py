"""Wrong command lines: one line that says what is wrong, and what was probably meant."""

from __future__ import annotations

import re

import pytest

from autotune.cli.main import main as autotune
from autotune.cli.options import OK, USAGE
from cpuconv.cli.main import main as cpuconv

CASES = [
    (cpuconv, ["prfile", "m.onnx"], "invalid command: 'prfile' (did you mean 'profile'?)", "cpuconv --help"),
    (cpuconv, ["--verion"], "unrecognized argument '--verion' (did you mean '--version'?)", "cpuconv --help"),
    (cpuconv, ["run", "m.onnx", "--shapee", "N=1"], "'--shapee' (did you mean '--shape'?)", "cpuconv run --help"),
    (cpuconv, ["run", "--smples", "x"], "'--smples' (did you mean '--samples'?)", "cpuconv run --help"),
    (cpuconv, ["run", "m.onnx", "--shapee=N=1"], "'--shapee' (did you mean '--shape'?)", "cpuconv run --help"),
    (
        cpuconv,
        ["run", "m.onnx", "--accuracy", "exat"],
        "invalid choice: 'exat' (did you mean 'exact'",
        "cpuconv run --help",
    ),
    (cpuconv, ["run", "m.onnx", "--zzz"], "unrecognized argument '--zzz'; see", "cpuconv run --help"),
    (
        cpuconv,
        ["run", "m.onnx", "--seed", "-1"],
        "--seed: must be an integer of at least 0, not '-1'",
        "cpuconv run --help",
    ),
    (cpuconv, ["run"], "the following arguments are required: MODEL", "cpuconv run --help"),
    (cpuconv, [], "the following arguments are required: COMMAND", "cpuconv --help"),
    (autotune, ["tabel"], "invalid command: 'tabel' (did you mean 'table'?)", "autotune --help"),
    (autotune, ["warmup", "x", "--threads", "two"], "argument --threads: must be an integer", "autotune warmup --help"),
    (autotune, ["warmup", "x", "--budget", "soon"], "argument --budget: must be a number", "autotune warmup --help"),
]


@pytest.mark.parametrize(("program", "arguments", "words", "help"), CASES)
def test_a_mistake_is_one_line(program, arguments, words, help, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program(arguments)
    assert ended.value.code == USAGE
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert words in line and line.endswith(f"see '{help}'") and told.out == ""


@pytest.mark.parametrize(("program", "name"), [(cpuconv, "cpuconv"), (autotune, "autotune")])
def test_version(program, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program(["--version"])
    assert ended.value.code == OK
    assert re.match(rf"{name} \d+\.\d+\.\d+(\S*)( \(cpuconv\))?, Python 3\.", capsys.readouterr().out)
