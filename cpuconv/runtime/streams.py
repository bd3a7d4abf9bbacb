"""Streams: threads that run submitted calls in the background."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from baselib.locks import Lock
from baselib.signals import signals_blocked
from cpuconv.runtime.threads import restrict

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class Streams:
    """At most `count` threads, started on demand; calls beyond that wait in order.

    The threads finish all submitted calls, then end: when this object is deleted, or before the interpreter exits. A
    child of `fork` starts its own threads and runs none of the parent's calls.

    Parameters
    ----------
    count : int
    name : str
        Prefix of the threads' names.
    pin : int
        Threads of a call: each stream and its helping threads stay on an equal part of the cores that this process may
        use, where these suffice for all streams or a call has one thread. 0: streams may run anywhere.
    """

    def __init__(self, count: int, name: str = "cpuconv", pin: int = 0) -> None:
        self.count = count
        self._name, self._pin = name, pin
        self._lock = Lock()
        self._process = 0
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a call to a thread; return its future, which also holds its exception."""
        from concurrent.futures import ThreadPoolExecutor  # deferred: `import cpuconv` does not need it

        with self._lock:
            if self._pool is None or self._process != os.getpid():
                parts = iter(self._shares())
                self._process = os.getpid()
                self._pool = ThreadPoolExecutor(self.count, self._name, _restrict_to_next, (parts, self._pin))
            with signals_blocked():  # a thread may be started here
                return self._pool.submit(call, *arguments)

    def _shares(self) -> list[Sequence[int]]:
        cores = _cores() if self._pin else []
        return [] if self._pin > 1 and self.count * self._pin > len(cores) else shares(cores, self.count)


def shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Equal parts of the cores, which are disjoint if there are enough; empty without cores."""
    if not cores:
        return [()] * count
    if len(cores) < count:
        return [[cores[at % len(cores)]] for at in range(count)]
    return [cores[at * len(cores) // count : (at + 1) * len(cores) // count] for at in range(count)]


def reported(call: Callable[..., object], *arguments: Any) -> None:
    """Call, and report an exception like that of any other thread."""
    try:
        call(*arguments)
    except BaseException:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []


def _restrict_to_next(parts: Iterator[Sequence[int]], threads: int) -> None:
    if cores := next(parts, ()):  # atomic, as the iterator is implemented in C
        restrict(cores, threads)
