"""Threads that run what a session was asked to run in the background."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from autotune.locks import Lock
from autotune.signals import signals_blocked


class Background:
    """At most so many threads, started as they are needed; what is asked for meanwhile waits, in order.

    They end with this object, when they have run all that they were asked for, and so they do before the interpreter
    ends. A child of `fork` starts threads of its own, and runs nothing that its parent was asked for.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = Lock()
        self._process = 0
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], object]) -> None:
        """Have a thread call this; an exception is reported as one of any thread is."""
        with self._lock:
            if self._pool is None or self._process != os.getpid():
                self._process, self._pool = os.getpid(), ThreadPoolExecutor(self._threads, "run_async")
            with signals_blocked():  # it may start a thread
                self._pool.submit(_reported, call)


def _reported(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # which the pool would keep to itself
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
