"""Entry points of the programs: Ctrl-C also ends them cleanly during the imports."""

from __future__ import annotations

import importlib
import sys

_INTERRUPTED = 130


def autotune() -> int:
    """Run `autotune`; return its exit code."""
    return run("autotune")


def cpuconv() -> int:
    """Run `cpuconv`, whose import is slow; return its exit code."""
    return run("cpuconv")


def run(program: str) -> int:
    """Run the command line of the package `program`; return its exit code."""
    try:
        code: int = importlib.import_module(f"{program}.cli.main").main()
    except KeyboardInterrupt:  # during the import; `main` reports its own
        print(f"{program}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return code
