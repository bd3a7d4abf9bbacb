"""Programs as they are started: Ctrl-C while they are imported ends them as it does later."""

from __future__ import annotations

import subprocess

import pytest

from autotune.cli.entry import run
from autotune.cli.options import INTERRUPTED, OK
from baselib.interpreter import python


@pytest.mark.parametrize("program", ["autotune", "cpuconv"])
def test_an_interrupt_while_importing(
    program: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        assert name == f"{program}.cli.main"
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.cli.entry.importlib.import_module", interrupted)
    assert run(program) == INTERRUPTED
    assert capsys.readouterr().err == f"{program}: interrupted\n"


@pytest.mark.parametrize("program", ["autotune", "cpuconv"])
def test_they_are_found(program: str) -> None:
    code = f"import sys; from autotune.cli.entry import {program}; sys.argv[1:] = ['--version']; {program}()"
    done = subprocess.run(python("-c", code), capture_output=True, text=True, check=False)
    assert done.returncode == OK and "Python 3." in done.stdout, done.stderr
    module = subprocess.run(python("-m", program, "--version"), capture_output=True, text=True, check=False)
    assert module.stdout == done.stdout, module.stderr
