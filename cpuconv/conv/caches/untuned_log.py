"""Counts of requested problems without tuning results, for `autotune warmup --missed`.

A call only increments a count. A daemon thread writes the counts to the store every 2 seconds, as does the end of the
process. It also checks whether the problems have been tuned since, such as by a tuner in the background. Nothing here
raises.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from autotune.machine.device import fingerprint
from autotune.store.store import Store
from baselib.locks import Lock
from baselib.paths import store_path
from baselib.signals import start_thread
from cpuconv.problem.problem import ConvProblem

PERIOD = 2.0  # seconds between checks

IsTuned = Callable[[ConvProblem, Any], bool]


class UntunedLog:
    """Counts of untuned problems.

    Attributes
    ----------
    counts : dict
        Number of requests per problem since the counts were last written.
    waiting : dict
        Untuned (problem, limits), each with a function that returns whether they are tuned now.
    period : float
        Seconds between the checks of the daemon thread.
    most : int
        Maximum number of problems.
    """

    most = 1024

    def __init__(
        self, on_tuned: Callable[[ConvProblem], object], look_again: Callable[[], object], *, persistent: bool = True
    ) -> None:
        """Start without counts.

        Parameters
        ----------
        on_tuned : callable
            Called by `settle` with each problem that has been tuned meanwhile.
        look_again : callable
            Called first by `settle`: it drops data that was read before the store changed.
        persistent : bool
            Whether a daemon thread calls `flush` and `settle`; it starts with the first problem.
        """
        self.counts: dict[ConvProblem, int] = {}
        self.waiting: dict[tuple[ConvProblem, Hashable], IsTuned] = {}
        self.period = PERIOD
        self._on_tuned, self._look_again, self._persistent = on_tuned, look_again, persistent
        self._lock = Lock()
        self._thread: threading.Thread | None = None

    def add(self, problem: ConvProblem, limits: Hashable, is_tuned: IsTuned) -> None:
        """Count a problem without a stored candidate within `limits`, and wait until `is_tuned(problem, limits)`."""
        with self._lock:
            if problem.n and (problem in self.counts or len(self.counts) < self.most):
                self.counts[problem] = self.counts.get(problem, 0) + 1
                if len(self.waiting) < self.most:
                    self.waiting[problem, limits] = is_tuned
            if self._persistent and self._thread is None:
                self._thread = threading.Thread(target=self._attend, name="cpuconv-untuned", daemon=True)
                with contextlib.suppress(RuntimeError):  # the process is ending
                    start_thread(self._thread)

    def flush(self) -> None:
        """Write the counts to the store, if that is writable."""
        with self._lock:
            counts = dict(self.counts)
            self.counts.clear()
        if not counts:
            return
        with contextlib.suppress(Exception):  # errors of the store must not stop inference
            if _is_writable(path := store_path()):
                with Store(path, strict=True) as store:  # strict: no fallback to memory if it cannot be written
                    store.add_missed(fingerprint().key, [(problem.key, count) for problem, count in counts.items()])

    def settle(self) -> None:
        """Call `on_tuned` with problems tuned meanwhile, so that the next call or plan uses the results."""
        self._look_again()
        for (problem, limits), is_tuned in list(self.waiting.items()):
            if is_tuned(problem, limits):
                with self._lock:
                    self.waiting.pop((problem, limits), None)
                self._on_tuned(problem)

    def after_fork(self) -> None:
        """Reset in a forked child: the parent writes the counts, and its thread does not run here."""
        self._thread = None
        self.counts.clear()

    def _attend(self) -> None:
        seen: tuple[Any, ...] = ()
        pause = threading.Event()  # never set
        while not pause.wait(self.period):
            with contextlib.suppress(Exception):
                self.flush()
                if (now := _state_of_store()) != seen:
                    seen = now
                    self.settle()


def _state_of_store() -> tuple[Any, ...]:
    """A value that differs after every change of the store."""
    states = []
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            status = Path(f"{store_path()}{suffix}").stat()
            states.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(states)


def _is_writable(path: Path) -> bool:
    existing = next(place for place in (path, *path.parents) if place.exists())
    return os.access(existing, os.W_OK)
