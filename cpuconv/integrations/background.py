"""Thread pool for asynchronous runs of a session."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from baselib.locks import Lock
from baselib.signals import signals_blocked


class Background:
    """At most `threads` threads, started on demand; calls beyond that wait in order.

    The threads finish all submitted calls, then end: when this object is deleted, or before the interpreter exits. A
    child of `fork` starts its own threads and runs none of the parent's calls.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = Lock()
        self._process = 0
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], object]) -> None:
        """Submit a call to a thread; an exception is reported like that of any other thread."""
        with self._lock:
            if self._pool is None or self._process != os.getpid():
                self._process, self._pool = os.getpid(), ThreadPoolExecutor(self._threads, "run_async")
            with signals_blocked():  # a thread may be started here
                self._pool.submit(_reported, call)


def _reported(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # the pool would swallow it
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
