"""The terminal that tests read screens from."""

from __future__ import annotations

from baselib.interpreter import python
from support.running.terminal import on_terminal, shown


def test_what_is_erased_is_not_shown():
    assert shown("a\r\nworking\r\n\r\x1b[1A\x1b[2Kdone\r\n") == ["a", "done", ""]
    assert shown("\x1b[32m10%\x1b[0m\r100%") == ["100%"]
    assert shown("abc\rx\x1b[K") == ["x"]


def test_a_screen_has_columns_times_and_a_code():
    code = "import os, sys, time; print(os.get_terminal_size().columns, flush=True); time.sleep(0.2); sys.exit(3)"
    screen = on_terminal(python("-c", code), columns=70)
    assert screen.lines == ["70", ""] and screen.code == 3
    assert screen.first("^70") < screen.seconds < 60 and screen.first("never") == float("inf")
