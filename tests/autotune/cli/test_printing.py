"""What commands do with a reader of their output."""

from __future__ import annotations

import os
import sys

import pytest

from autotune.cli.options import FAILED, OK, printed


@pytest.mark.parametrize("lines", [1, 10_000])  # what Python holds back until its end, and what it does not
def test_a_reader_that_leaves_is_no_error(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert printed(lambda: print("a line\n" * lines) or OK) == FAILED  # type: ignore[func-returns-value]
        stream.write("more")  # goes nowhere, and says nothing
