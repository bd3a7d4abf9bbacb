"""Threads that take no signals, so that these reach the program's own threads, such as one in `sigwait`.

A signal to a process goes to any of its threads that does not block it. If that is one of ours, the signal's default
action ends the process, though all threads of the program block the signal.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

# Raised by what a thread does itself. Blocked they would end the process without the handler, such as `faulthandler`'s.
_FAULTS = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Let this thread block all signals meanwhile, and for ever those threads that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # a handler may raise as soon as the mask is set
        signal.pthread_sigmask(signal.SIG_BLOCK, _blocked())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread that takes no signals."""
    with signals_blocked():
        thread.start()


def unblock_signals() -> None:
    """Take all signals again, in a process that a thread without them started."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _blocked() -> set[signal.Signals]:
    return signal.valid_signals() - {getattr(signal, name) for name in _FAULTS if hasattr(signal, name)}
