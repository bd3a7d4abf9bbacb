"""Locks that are safe with `fork`: a child has only the forking thread; the state of other threads' work is frozen.

A fork waits for locks that are held briefly, at most `FORK_SECONDS`, so that the data that they guard are consistent in
the child. It does not wait for other locks. In the child all locks are open, except those of its own thread.
"""

from __future__ import annotations

import functools
import logging  # noqa: F401, see below
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

FORK_SECONDS = 30.0  # max. wait of a fork; compiling a kernel takes up to 3 s


class Lock:
    """A reentrant lock for ``with``.

    Parameters
    ----------
    brief : bool
        Whether it is only held briefly, so that a fork can wait for it.
    """

    def __init__(self, *, brief: bool = True) -> None:
        self.lock = threading.RLock()
        (_brief if brief else _long).add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


_brief: weakref.WeakSet[Lock] = weakref.WeakSet()
_long: weakref.WeakSet[Lock] = weakref.WeakSet()
_others: list[Any] = []


class _Fork(threading.local):
    """The locks that a thread acquired before its fork, and those that it did not get in time."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.late: list[Any] = []


_fork = _Fork()


def fork_waits_for(*locks: Any) -> None:
    """Let forks also wait for these locks (`threading.RLock`), in this order, after those that are held briefly.

    A function instead of a lock is called at each fork, and yields locks of packages that may be imported late.
    """
    _others.extend(locks)


def _told(locks: Iterable[Any]) -> Iterator[Any]:
    for each in locks:
        yield from each() if callable(each) else (each,)


def _before_fork() -> None:
    end = time.monotonic() + FORK_SECONDS
    for each in (*(lock.lock for lock in list(_brief)), *_told(_others)):
        got = each.acquire(timeout=max(0.0, end - time.monotonic()))
        (_fork.held if got else _fork.late).append(each)


def _after_fork_in_parent() -> None:
    while _fork.held:
        _fork.held.pop().release()
    _fork.late.clear()


def _after_fork_in_child() -> None:
    late = [*_fork.late]
    _after_fork_in_parent()
    for each in (*(lock.lock for lock in [*_brief, *_long]), *late):  # includes brief locks created since
        if not each._is_owned():
            each._at_fork_reinit()
    if late:
        warnings.warn(
            f"this process was forked while another thread was compiling, for more than {FORK_SECONDS:.0f} s: kernels "
            "compiled here may fail (the start method 'spawn' avoids this)",
            RuntimeWarning,
            stacklevel=2,
        )


# Handlers registered last are called first before a fork. Modules imported while a kernel is compiled take logging's
# lock: if logging were imported after this module, a fork would hold that lock and wait for the compiler.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


if TYPE_CHECKING:
    lazy = functools.cached_property
else:

    class lazy(functools.cached_property):
        """An attribute that is computed at its first read; concurrent threads get the same value.

        Unlike `functools.cached_property` before Python 3.12 it has no lock, which could be taken in a child of fork.
        """

        def __get__(self, instance, owner=None):
            return self if instance is None else instance.__dict__.setdefault(self.attrname, self.func(instance))
