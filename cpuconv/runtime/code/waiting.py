"""One line on the terminal when kernels take long to compile: the user waits for them once on a machine."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 1.0  # of compiling, before the line


class Waiting:
    """The time that a process has spent compiling; one thread at a time compiles.

    Parameters
    ----------
    seconds : float
        How much of it passes in silence.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._told = False

    @contextlib.contextmanager
    def compiling(self, kept: Path | None) -> Iterator[None]:
        """Time the compilation of a kernel, and write the line where it is due; `kept` is the folder of kernels."""
        if self._spent >= self._seconds and not self._told:
            self._told = True
            self._tell(kept)
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - begun

    def _tell(self, kept: Path | None) -> None:
        if sys.stderr is None or not sys.stderr.isatty():
            return
        where = f"once: they are kept in {kept}" if kept else "for this process alone: nothing can be kept on disk"
        with contextlib.suppress(OSError, ValueError):  # a terminal that went away, a stream that is closed
            print(f"cpuconv compiles kernels for this CPU, {where}", file=sys.stderr, flush=True)
