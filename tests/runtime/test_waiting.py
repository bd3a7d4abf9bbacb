"""What happens beside a compilation: one line on a terminal, after a second of it; the collector of cycles waits."""

from __future__ import annotations

import gc
import io
import sys
from pathlib import Path

import pytest

from cpuconv.runtime.code import cache
from cpuconv.runtime.code.waiting import Waiting


class Stream(io.StringIO):
    """Standard error that is a terminal or is none."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def said(waiting: Waiting, monkeypatch, terminal: bool = True, kept: Path | None = None) -> str:
    """What a compilation writes."""
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    with waiting.compiling(kept):
        pass
    return stream.getvalue()


def test_once_after_the_time(monkeypatch) -> None:
    waiting = Waiting(1e-9)
    assert said(waiting, monkeypatch, kept=Path("/kept")) == ""
    told = said(waiting, monkeypatch, kept=Path("/kept"))
    assert told == f"cpuconv compiles kernels for this CPU, once: they are kept in {Path('/kept')}\n"
    assert said(waiting, monkeypatch) == ""


def test_nothing_is_kept(monkeypatch) -> None:
    assert "for this process alone" in said(Waiting(0.0), monkeypatch)


def test_silence(monkeypatch) -> None:
    """Where nobody looks, where there is no stream, and where little is compiled."""
    assert said(Waiting(0.0), monkeypatch, terminal=False) == ""
    waiting = Waiting(1e6)
    assert said(waiting, monkeypatch) + said(waiting, monkeypatch) == ""
    monkeypatch.setattr(sys, "stderr", None)
    with Waiting(0.0).compiling(None):
        pass
    closed = Stream(True)
    closed.close()
    closed.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", closed)
    with Waiting(0.0).compiling(None):
        pass


def test_kernels_that_are_compiled_count(monkeypatch) -> None:
    def fails() -> cache.Compiled:
        raise KeyError

    stream = Stream(True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(cache, "_waiting", Waiting(0.0))
    with pytest.raises(KeyError):
        cache.load_or_compile("none", "none", "waiting", fails)
    assert stream.getvalue().startswith("cpuconv compiles kernels")


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_of_cycles_waits_and_is_as_it_was(collects: bool) -> None:
    def fails() -> cache.Compiled:
        assert not gc.isenabled()
        raise KeyError

    was = gc.isenabled()
    try:
        gc.enable() if collects else gc.disable()
        with pytest.raises(KeyError):
            cache.load_or_compile("none", "none", "collecting", fails)
        assert gc.isenabled() == collects
    finally:
        gc.enable() if was else gc.disable()
