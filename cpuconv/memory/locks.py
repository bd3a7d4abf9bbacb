"""Locks that a child of fork finds open: the thread that held one in the parent does not run there."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A lock for ``with``; in a child of `fork` it is open, whoever held it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _open(self) -> None:
        self._lock = threading.Lock()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock._open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
