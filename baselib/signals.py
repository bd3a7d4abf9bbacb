"""Threads without signals, and deferred Ctrl-C during operations that must not be interrupted.

A signal to a process goes to any thread that does not block it. If one of our threads took it, the default action would
end the process, though all threads of the program block the signal. Our threads block signals, so these reach the
program's own threads, such as one in `sigwait`.
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

# Raised by a thread's own actions. If blocked, they end the process without a handler such as `faulthandler`'s.
_FAULTS = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block all signals in this thread inside the context, and permanently in threads that are started there."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # a handler may raise immediately after the mask is set
        signal.pthread_sigmask(signal.SIG_BLOCK, _blocked())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread that receives no signals."""
    with signals_blocked():
        thread.start()


def unblock_signals() -> None:
    """Unblock all signals, in a process that was started by a thread without them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _blocked() -> set[signal.Signals]:
    return signal.valid_signals() - {getattr(signal, name) for name in _FAULTS if hasattr(signal, name)}


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------

_AGAIN_SECONDS = 0.02  # delay after which a lost interrupt is repeated


class _Delay:
    """A SIGINT handler that records the signal, and prints a message once if standard error is a terminal."""

    def __init__(self, message: str, before: Callable[[int, Any], Any]) -> None:
        self._message = message
        self.before = before
        self.came = False

    def __call__(self, number: int, frame: Any) -> None:
        if not self.came:
            self.came = True
            with contextlib.suppress(OSError, ValueError, AttributeError):
                if sys.stderr.isatty():
                    os.write(sys.stderr.fileno(), f"\n{self._message}\n".encode())  # the stream may be in use


@contextlib.contextmanager
def interrupts_delayed(message: str) -> Iterator[None]:
    """Defer Ctrl-C until the end of the context, as compilers lose or misinterpret asynchronous exceptions.

    Only Python handlers in the main thread are deferred; `message` is the message for a user who waits at a terminal.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before) or isinstance(before, _Delay):
        yield
        return
    delay = _Delay(message, before)
    try:
        signal.signal(signal.SIGINT, delay)
    except ValueError:  # in a subinterpreter
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if delay.came:
            before(signal.SIGINT, None)


def deliver_interrupt() -> None:
    """Deliver a deferred Ctrl-C, while waiting for another process."""
    delay = signal.getsignal(signal.SIGINT)
    if isinstance(delay, _Delay) and delay.came:
        delay.came = False
        delay.before(signal.SIGINT, None)


def _interrupt_main() -> None:
    """Interrupt the main thread from another one, in any blocking call."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextlib.contextmanager
def interrupts_arrive() -> Iterator[None]:
    """Let Ctrl-C end a program anywhere: in callbacks of weak references, Python would only print it."""
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
