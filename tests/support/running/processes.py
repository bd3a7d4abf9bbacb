"""Processes that tests start: Python code, and the tuner's command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from baselib.interpreter import python
from support import lowered

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ("autotune", "baselib", "cpuconv", "layouts")  # the packages of the wheel
_CHILD = f"{os.pathsep}{lowered.CHILD}" if lowered.cpu() else ""
PATH = f"{ROOT}{os.pathsep}{ROOT / 'tests'}{_CHILD}"  # where this tree and its tests are imported from


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """An interpreter with these arguments, such as "-c" and code, and variables; its three streams are pipes."""
    pipe, environ = subprocess.PIPE, {**os.environ, "PYTHONPATH": PATH, **variables}
    return subprocess.Popen(python(*arguments), env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str], code: int = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """What the process printed, once it has read `stdin` and ended with that code."""
    out, err = process.communicate(stdin)
    assert process.returncode == code, err
    return subprocess.CompletedProcess(process.args, code, out, err)


def run(*arguments: str, code: int = 0, stdin: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start an interpreter and wait for its end."""
    return finish(start(*arguments, **variables), code, stdin)
