"""Notice on the terminal when compilation takes long, which happens once per machine."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 1.0  # compile time before the notice


class Waiting:
    """Total compile time of a process; one thread compiles at a time.

    Parameters
    ----------
    seconds : float
        Compile time before the notice.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._told = False

    @contextlib.contextmanager
    def compiling(self, kept: Path | None) -> Iterator[None]:
        """Time the compilation of a kernel, and print the notice when it is due; `kept` is the kernel folder."""
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
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the stream is closed
            print(f"cpuconv compiles kernels for this CPU, {where}", file=sys.stderr, flush=True)
