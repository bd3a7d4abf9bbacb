"""Streams: threads that run submitted calls in the background."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from baselib.locks import Lock
from baselib.signals import signals_blocked

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
    pin : bool
        Whether each thread stays on one core of those that this process may use, where the system allows it.
    """

    def __init__(self, count: int, name: str = "cpuconv", pin: bool = False) -> None:
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
                cores = itertools.cycle(_cores() if self._pin else [])
                self._process = os.getpid()
                self._pool = ThreadPoolExecutor(self.count, self._name, _pin_to_next, (cores,))
            with signals_blocked():  # a thread may be started here
                return self._pool.submit(call, *arguments)


def reported(call: Callable[..., object], *arguments: Any) -> None:
    """Call, and report an exception like that of any other thread."""
    try:
        call(*arguments)
    except BaseException:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []


def _pin_to_next(cores: Iterator[int]) -> None:
    core = next(cores, None)  # atomic, as the iterator is implemented in C
    if core is not None:
        try:
            os.sched_setaffinity(0, {core})  # of this thread
        except OSError:  # the process's own set changed meanwhile
            return
