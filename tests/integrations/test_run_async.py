"""Runs in the background: a bounded number of threads, which end with the session, and before the interpreter does."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import ArgumentError
from cpuconv.runtime.threads import maximum_threads
from support.graphs import parse
from support.running import processes
from support.running.events import until

TEXT = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
FEED = {"x": np.arange(4, dtype=np.float32)}


def session(threads: int = 0) -> cpuconv.InferenceSession:
    options = cpuconv.SessionOptions()
    options.intra_op_num_threads, options.async_threads = 1, threads
    return cpuconv.InferenceSession(parse(TEXT).SerializeToString(), options)


def _background() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("run_async")]


@pytest.mark.parametrize("stated", [1, 3, 0])
def test_as_many_threads_as_are_stated(stated: int) -> None:
    most = stated or maximum_threads()
    made, gate, heard = session(stated), threading.Event(), []
    inside: set[int] = set()

    def callback(results: list, data: int, error: str) -> None:
        inside.add(threading.get_ident())
        gate.wait()
        heard.append((data, error, results[0].sum()))

    before = {*_background()}
    for at in range(20):
        made.run_async(None, FEED, callback, at)
    until(lambda: len(inside) == most)
    threads = {*_background()} - before
    gate.set()
    until(lambda: len(heard) == 20)
    assert len(threads) == most == len(inside)
    assert sorted(heard) == [(at, "", 6.0) for at in range(20)]
    if most == 1:
        assert heard == sorted(heard)  # in the order in which they were asked for


@pytest.mark.parametrize("wanted", [-1, "2", 1.5, True])
def test_what_the_number_of_threads_may_be(wanted: Any) -> None:
    with pytest.raises(ArgumentError, match="'async_threads'"):
        session(wanted)


def test_threads_end_with_their_session() -> None:
    made, done = session(2), threading.Event()
    before = {*_background()}
    made.run_async(None, FEED, lambda *told: done.set(), None)
    assert done.wait(60)
    mine = {*_background()} - before
    assert mine
    del made
    gc.collect()
    for thread in mine:
        thread.join()


def test_an_exception_of_a_callback_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = session(1), []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def callback(*given: Any) -> None:
        raise RuntimeError("of the callback")

    made.run_async(None, FEED, callback, None)
    made.run_async(None, FEED, callback, None)
    until(lambda: len(told) == 2)
    assert {str(each.exc_value) for each in told} == {"of the callback"}
    assert all(each.exc_type is RuntimeError and each.exc_traceback and each.thread for each in told)


_TESTS = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_run_async as tests\n"
_EXIT = """
made = tests.session(2)
for at in range(8):
    made.run_async(None, tests.FEED, lambda results, data, error: print(f"{data} {results[0].sum()}\\n", end=""), at)
"""


def test_the_interpreter_ends_when_all_have_run() -> None:
    lines = processes.run("-c", _TESTS + _EXIT).stdout.splitlines()
    assert sorted(lines) == [f"{at} 6.0" for at in range(8)]


_FORK = """
import os, sys, threading

made, gate, begun = tests.session(1), threading.Event(), threading.Event()

def held(results, data, error):
    begun.set()
    gate.wait()
    print("parent", data, flush=True)

for at in range(3):
    made.run_async(None, tests.FEED, held, at)
begun.wait()
child = os.fork()
if child == 0:
    done = threading.Event()
    made.run_async(None, tests.FEED, lambda results, data, error: (print("child", flush=True), done.set()), None)
    done.wait()
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("status", status, flush=True)
gate.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_fork_has_threads_of_its_own() -> None:
    lines = processes.run("-W", "ignore", "-c", _TESTS + _FORK).stdout.splitlines()
    assert lines == ["child", "status 0", "parent 0", "parent 1", "parent 2"]
