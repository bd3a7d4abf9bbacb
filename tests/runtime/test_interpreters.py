"""Interpreters that the package does not run in: its import says so, and nothing hangs."""

from __future__ import annotations

import sys

import pytest

from cpuconv import interpreters
from support.running import processes

SUB = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = '''
import sys
sys.path[:] = {path!r}
try:
    import cpuconv
except ImportError as error:
    print(error, flush=True)
'''
made = interpreters.create()
interpreters.run_string(made, code.format(path=sys.path))
print("the end")
"""  # the interpreter is left to the end of the process


def test_a_sub_interpreter_is_refused_and_the_process_ends() -> None:
    if sys.version_info < (3, 13):
        pytest.importorskip("_xxsubinterpreters")
    said = processes.run("-W", "ignore", "-c", SUB).stdout.splitlines()
    assert said[0].startswith("cpuconv must be imported in the main interpreter") and said[-1] == "the end"


def test_python_without_its_lock_is_refused() -> None:
    code = (
        "import sys\nsys._is_gil_enabled = lambda: False\ntry:\n    import cpuconv\nexcept ImportError as e: print(e)\n"
    )
    assert "PYTHON_GIL=1" in processes.run("-c", code).stdout


def test_this_one_serves() -> None:
    interpreters.check()
