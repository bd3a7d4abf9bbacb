"""Entry points of the programs: Ctrl-C ends them cleanly while they are being imported, too."""

from __future__ import annotations

import importlib
import sys

_INTERRUPTED = 130


def autotune() -> int:
    """Run `autotune`; returns its exit code."""
    return run("autotune")


def cpuconv() -> int:
    """Run `cpuconv`, whose package takes long to import; returns its exit code."""
    return run("cpuconv")


def run(program: str) -> int:
    """Run the command line of a package of this name; returns its exit code."""
    try:
        code: int = importlib.import_module(f"{program}.cli.main").main()
    except KeyboardInterrupt:  # what `main` itself meets it tells itself
        print(f"{program}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return code
