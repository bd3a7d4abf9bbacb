"""Commands on a real terminal of so many columns: what they show, and when."""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

COLUMNS = 80
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Screen:
    """What a command showed.

    Attributes
    ----------
    lines : list[str]
        Its lines, without what it erased.
    code : int
        Its exit code.
    parts : list[tuple[float, str]]
        What it wrote, with the seconds since its start.
    """

    lines: list[str]
    code: int
    parts: list[tuple[float, str]]

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.parts[-1][0]

    def first(self, pattern: str) -> float:
        """Seconds until what it wrote had the pattern; infinite if never."""
        told = ""
        for seconds, part in self.parts:
            told += _CONTROL.sub("", part)
            if re.search(pattern, told, re.MULTILINE):
                return seconds
        return float("inf")


def shown(told: str) -> list[str]:
    """The lines of a screen on which this was written: what moves up, returns and erases is followed."""
    rows, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[[0-9;?]*[a-zA-Z]|\r|\n)", told):
        if part == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            amount, kind = part[2:-1], part[-1]
            row = max(0, row - int(amount or 1)) if kind == "A" else row
            if kind == "K":
                rows[row] = "" if amount == "2" else rows[row][:column]
        else:
            rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + len(part) :]
            column += len(part)
    return rows


def on_terminal(
    command: Sequence[str],
    *,
    columns: int = COLUMNS,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Screen:
    """Run a command on a terminal of its own, in a folder and an environment."""
    pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
    begun = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        try:
            fcntl.ioctl(1, termios.TIOCSWINSZ, columns.to_bytes(2, sys.byteorder).rjust(4, b"\0") + bytes(4))
            variables = {name: value for name, value in (environ or os.environ).items() if name != "COLUMNS"}
            if folder is not None:
                os.chdir(folder)
            os.execvpe(command[0], list(command), variables)
        finally:
            os._exit(127)
    parts: list[tuple[float, str]] = []
    decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character
    try:
        while part := os.read(terminal, 1 << 16):
            parts.append((time.monotonic() - begun, decoder.decode(part)))
    except OSError:  # the other end is closed
        pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    parts.append((time.monotonic() - begun, ""))
    lines = shown("".join(part for _, part in parts))
    return Screen(lines, os.waitstatus_to_exitcode(status), parts)
