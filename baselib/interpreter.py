"""Commands that start this interpreter again, in another process."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

VARIABLE = "CPUCONV_LAUNCHER"

_FLAGS = {  # command-line letters by attribute of `sys.flags`
    "debug": "d",
    "optimize": "O",
    "dont_write_bytecode": "B",
    "no_user_site": "s",
    "no_site": "S",
    "ignore_environment": "E",
    "verbose": "v",
    "bytes_warning": "b",
    "isolated": "I",
    "safe_path": "P",
}

# Only built-in modules are imported before the parent's path is set, as `-c` puts the current folder first.
_BOOT = """import sys
sys.path[:] = {path}
import importlib
importlib.import_module(sys.argv[1]).main(*sys.argv[2:])"""


def python(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter with the arguments.

    If a program cannot be started by its path alone, as on an emulated CPU, the variable CPUCONV_LAUNCHER has the words
    before it. They are quoted as in a shell.
    """
    return [*shlex.split(os.environ.get(VARIABLE, "")), sys.executable, *arguments]


def python_main(module: str, *arguments: str) -> list[str]:
    """Return the command that calls a module's `main` with the arguments, under this interpreter's flags.

    Modules are found as in this process, but never in the current folder.
    """
    return python(*_flags(), "-c", _BOOT.format(path=_path()), module, *arguments)


def _flags() -> list[str]:
    """Return the command-line options that give another interpreter the flags of this one."""
    letters = [f"-{letter * int(getattr(sys.flags, name, 0))}" for name, letter in _FLAGS.items()]
    warned = [f"-W{each}" for each in sys.warnoptions]
    named = [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    return [*(each for each in letters if each != "-"), *warned, *named]


def _path() -> list[str]:
    """Return `sys.path` as absolute paths, without entries for the current folder."""
    known = [os.fsdecode(each) for each in sys.path if isinstance(each, (str, bytes, os.PathLike))]
    entries = [each for each in known if os.path.normpath(each) != os.curdir]
    return [os.path.abspath(each) if os.path.exists(each) else each for each in entries]  # import hooks use other names


def starts_again() -> bool:
    """Whether the command `python` starts an interpreter: not if this one is embedded in a program of another name."""
    name = Path(sys.executable or "").stem.lower()
    return name.startswith(("python", "pypy")) and not hasattr(sys, "frozen")
