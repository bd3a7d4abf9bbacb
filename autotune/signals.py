"""Threads that take no signals, and Ctrl-C that waits for what must not be left half done.

Threads without signals let these reach the program's own threads, such as one in `sigwait`.

A signal to a process goes to any of its threads that does not block it. If that is one of ours, the signal's default
action ends the process, though all threads of the program block the signal.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

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


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------

_AGAIN_SECONDS = 0.02  # after which an interrupt that was lost comes again


class _Delay:
    """A handler of SIGINT that notes that it came, and says so once where a terminal is."""

    def __init__(self, told: str, before: Callable[[int, Any], Any]) -> None:
        self._told = told
        self.before = before
        self.came = False

    def __call__(self, number: int, frame: Any) -> None:
        if not self.came:
            self.came = True
            with contextlib.suppress(OSError, ValueError, AttributeError):
                if sys.stderr.isatty():
                    os.write(sys.stderr.fileno(), f"\n{self._told}\n".encode())  # not by a stream that may be in use


@contextlib.contextmanager
def interrupts_delayed(told: str) -> Iterator[None]:
    """Let Ctrl-C wait until the end of the context, as compilers lose or mistake an exception that may come anywhere.

    Only handlers of Python's in the main thread are put off; `told` is what a user is told who waits at a terminal.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before) or isinstance(before, _Delay):
        yield
        return
    delay = _Delay(told, before)
    try:
        signal.signal(signal.SIGINT, delay)
    except ValueError:  # an interpreter beside the main one
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if delay.came:
            before(signal.SIGINT, None)


def deliver_interrupt() -> None:
    """Interrupt what waits for another process, where Ctrl-C came meanwhile and is put off."""
    delay = signal.getsignal(signal.SIGINT)
    if isinstance(delay, _Delay) and delay.came:
        delay.came = False
        delay.before(signal.SIGINT, None)


def _interrupt_main() -> None:
    """Interrupt the main thread, from another one, whatever call it waits in."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextlib.contextmanager
def interrupts_arrive() -> Iterator[None]:
    """Let Ctrl-C end a program wherever it comes: in callbacks of weak references Python would print and forget it."""
    before = sys.unraisablehook

    def again(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt:
            timer = threading.Timer(_AGAIN_SECONDS, _interrupt_main)
            timer.daemon = True
            timer.start()
        else:
            before(lost)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
