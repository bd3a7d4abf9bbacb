"""How this interpreter is started again, in a process of its own."""

from __future__ import annotations

import os
import shlex
import sys

VARIABLE = "CPUCONV_LAUNCHER"


def python(*arguments: str) -> list[str]:
    """The command that runs this interpreter with the arguments.

    Where a program cannot be started by its path alone, as on an emulated CPU, the variable CPUCONV_LAUNCHER holds the
    words that come before it, quoted as in a shell.
    """
    return [*shlex.split(os.environ.get(VARIABLE, "")), sys.executable, *arguments]
