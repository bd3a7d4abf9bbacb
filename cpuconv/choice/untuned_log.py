"""Problems that were asked for and not tuned: remembered for `autotune warmup --missed`, noticed once they are tuned.

A call only counts. A daemon thread writes the counts to the store every few seconds, as does the end of the process,
and looks whether somebody, such as a tuner in the background, has stored what was missed. Nothing here raises.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpuconv.problem.problem import ConvProblem

PERIOD = 2.0  # seconds between looks
MOST = 1024  # problems that are remembered at once

listeners: list[Callable[[ConvProblem], None]] = []
"""Called, in the daemon thread, with each problem that was missed and is tuned now."""

_lock = threading.Lock()
_counts: dict[ConvProblem, int] = {}
_waiting: dict[tuple[ConvProblem, Any], None] = {}
_thread: threading.Thread | None = None


def remember(problem: ConvProblem, limits: Any) -> None:
    """Count a problem that nothing is stored of, within `select.Limits`."""
    global _thread
    with _lock:
        if problem.n and (problem in _counts or len(_counts) < MOST):
            _counts[problem] = _counts.get(problem, 0) + 1
            if len(_waiting) < MOST:
                _waiting[problem, limits] = None
        if _thread is None:
            _thread = threading.Thread(target=_attend, name="cpuconv-missed", daemon=True)
            with contextlib.suppress(RuntimeError):  # the process is ending
                _thread.start()


def flush() -> None:
    """Write what was counted to the store, if that can be written."""
    with _lock:
        counts = dict(_counts)
        _counts.clear()
    if not counts:
        return
    with contextlib.suppress(Exception):  # inference goes on whatever happens to the store
        from autotune.machine.device import fingerprint
        from autotune.store.store import shared

        store = shared(read_only=False)
        if _is_writable(store.path):
            store.add_missed(fingerprint().key, [(problem.key, count) for problem, count in counts.items()])


def settle() -> None:
    """Forget the choices of what has been tuned since, so that the next call or plan takes what was found."""
    from cpuconv.choice import select, tuned

    for problem, limits in list(_waiting):
        if tuned.lookup(problem, limits) is not None and not tuned.older(problem, limits):
            with _lock:
                _waiting.pop((problem, limits), None)
            select.forget(problem)
            for listener in listeners:
                listener(problem)


def _attend(pause: threading.Event = threading.Event()) -> None:  # noqa: B008 - nobody sets it
    seen: tuple[Any, ...] = ()
    while not pause.wait(PERIOD):
        with contextlib.suppress(Exception):
            flush()
            if (now := _stamp()) != seen:
                seen = now
                settle()


def _stamp() -> tuple[Any, ...]:
    """Changes when the store does."""
    from autotune.paths import store_path

    found = []
    for name in (store_path(), Path(f"{store_path()}-wal")):
        with contextlib.suppress(OSError):
            status = name.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _is_writable(path: Path) -> bool:
    place = next(each for each in (path, *path.parents) if each.exists())
    return os.access(place, os.W_OK)


def _after_fork_in_child() -> None:
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _counts.clear()  # the parent writes them


atexit.register(flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
