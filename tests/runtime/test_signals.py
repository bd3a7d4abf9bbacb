"""Signals: our threads take none, and a handler that calls during a first compilation is told so at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from baselib.signals import signals_blocked, start_thread
from cpuconv.errors import CpuconvError
from cpuconv.runtime import threads
from cpuconv.runtime.code import cache
from cpuconv.runtime.streams import Streams
from support.running import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="masks of threads are read from Linux's /proc")

PRELUDE = """
import os, signal, sys
import cpuconv
import numpy as np
from cpuconv.conv import session
from cpuconv.runtime.streams import Streams
from cpuconv.runtime import threads

threads.maximum_threads.cache_clear()
x, w = np.ones((1, 64, 56, 56), np.float32), np.ones((64, 64, 1, 1), np.float32)
cpuconv.conv2d(x, w, threads=threads.maximum_threads())
workers = threads.pool()
background = Streams(2)
background.submit(lambda: None)
session.current.untuned.add(cpuconv.ConvProblem(1, 8, 9, 9, 8, 1, 1), None, lambda *_: False)
"""
WAITS = (
    PRELUDE
    + """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})  # too late for threads that run already
for number in (signal.SIGUSR1, signal.SIGTERM) * 50:
    os.kill(os.getpid(), number)
    assert signal.sigwait({number}) == number
tasks = [open(f"/proc/self/task/{each}/status").read() for each in os.listdir("/proc/self/task")]
masks = [int(each.partition("SigBlk:")[2].split()[0], 16) for each in tasks]
print(workers.layer, len(masks), sum(bool(mask >> (signal.SIGHUP - 1) & 1) for mask in masks))
"""
)


@pytest.mark.parametrize("layer", ["default", "omp", "workqueue"])
def test_a_program_that_waits_for_signals_gets_them(layer: str) -> None:
    if layer == "omp":
        pytest.importorskip("numba.np.ufunc.omppool")
    done = processes.run("-c", WAITS, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2", OPENBLAS_NUM_THREADS="2")
    name, count, blocked = done.stdout.split()
    assert name == ("own" if layer == "default" else layer)
    assert int(count) - int(blocked) == 1 and int(blocked) >= 3, "the main thread alone takes signals"


def test_a_thread_takes_no_signals_and_its_starter_those_of_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    seen: list[set[int]] = []
    thread = threading.Thread(target=lambda: seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    start_thread(thread)
    thread.join()
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD} <= seen[0]
    assert signal.SIGSEGV not in seen[0], "of which `faulthandler` tells"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    with pytest.raises(KeyboardInterrupt), signals_blocked():
        raise KeyboardInterrupt
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_what_runs_in_the_background_takes_no_signals() -> None:
    seen: list[set[int]] = []
    done = threading.Event()
    Streams(1).submit(lambda: (seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())), done.set()))
    assert done.wait(60) and signal.SIGTERM in seen[0]


# -- handlers


@pytest.fixture
def handled() -> Iterator[list[object]]:
    """What a handler of SIGUSR1 met that asks for a kernel which is not compiled."""
    met: list[object] = []

    def handler(*_: object) -> None:
        begun = time.monotonic()
        try:
            met.append(compiled("inner", lambda: pytest.fail("it is compiled within a compilation")))
        except CpuconvError as error:
            met.append(error)
        met.append(time.monotonic() - begun)

    before = signal.signal(signal.SIGUSR1, handler)
    yield met
    signal.signal(signal.SIGUSR1, before)


def compiled(name: str, compile_: object) -> object:
    return cache.load_or_compile(name, "cpuconv.kernels.streams.fingerprint", repr(os.urandom(8)), compile_)


class Interrupted(Exception):
    pass


def test_a_handler_that_calls_during_a_compilation_is_told_at_once(handled: list[object]) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGUSR1)
        raise Interrupted

    for _ in range(2):  # the second time as the first: nothing is left of it
        with pytest.raises(Interrupted):
            compiled("outer", interrupted)
        error, seconds = handled
        assert isinstance(error, CpuconvError) and seconds < 5
        assert "The kernel inner cannot be compiled by a signal handler" in str(error) and "outer" in str(error)
        handled.clear()


def test_other_threads_compile_meanwhile(handled: list[object]) -> None:
    seen: list[str] = []

    def inner() -> None:
        raise Interrupted

    def another() -> None:
        try:
            compiled("inner", inner)
        except Interrupted:
            seen.append("compiled")

    thread = threading.Thread(target=another)

    def outer() -> None:
        thread.start()  # it waits for this thread's lock, and then compiles
        raise Interrupted

    with pytest.raises(Interrupted):
        compiled("outer", outer)
    thread.join(60)
    assert seen == ["compiled"]


def test_a_handler_that_calls_while_threads_start_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Helpers:
        def __init__(self, count: int) -> None:
            made.append(self)
            if len(made) == 1:
                signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: threads.pool())
    try:
        monkeypatch.setattr(threads, "Helpers", Helpers)
        monkeypatch.setattr(threads, "_pool", None)
        monkeypatch.delenv("NUMBA_THREADING_LAYER", raising=False)
        assert threads.pool() in made
    finally:
        signal.signal(signal.SIGUSR1, before)
