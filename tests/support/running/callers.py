"""Callers of a model at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def at_once(count: int, call: Callable[[int], object]) -> None:
    """Run `call` of 0, 1, … in a thread each, begun together; what one raises is raised here."""
    start = threading.Barrier(count)

    def go(at: int) -> None:
        start.wait()
        call(at)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(go, range(count)))
