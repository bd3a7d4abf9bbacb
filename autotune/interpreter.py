"""How this interpreter is started again, in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

VARIABLE = "CPUCONV_LAUNCHER"

# The parent's module path is handed over, as a program may have changed it.
_BOOT = """import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main(*sys.argv[3:])"""


def python(*arguments: str) -> list[str]:
    """The command that runs this interpreter with the arguments.

    Where a program cannot be started by its path alone, as on an emulated CPU, the variable CPUCONV_LAUNCHER holds the
    words that come before it, quoted as in a shell.
    """
    return [*shlex.split(os.environ.get(VARIABLE, "")), sys.executable, *arguments]


def python_main(module: str, *arguments: str) -> list[str]:
    """The command that calls a module's `main` with the arguments; the module is found as this process would."""
    return python("-c", _BOOT, json.dumps(sys.path), module, *arguments)


def starts_again() -> bool:
    """Whether the command `python` starts an interpreter: not where this one is inside a program of another name."""
    name = Path(sys.executable or "").stem.lower()
    return name.startswith(("python", "pypy")) and not hasattr(sys, "frozen")
