"""Forks of a process that serves: what was compiled before runs in the child, and a child may compile.

Whatever hangs is killed after `SECONDS`, and fails its test.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from baselib.interpreter import python
from support.running import callers, events, processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
SECONDS = 60.0

PRELUDE = """
import sys, threading, time, warnings
import numpy as np
import cpuconv
from baselib import locks
from cpuconv.conv import session
from support.running.first_calls import W, X, ended, forked, new_function, onnx_model

def right(x=X):
    '''Whether new kernels, and a new model, give what they should.'''
    from cpuconv.problem import reference
    problem = cpuconv.ConvProblem(1, 16, 24, 24, 32, 3, 3, pads=(1, 1, 1, 1))
    assert reference.relative_error(cpuconv.conv2d(x, W, padding=1), reference.conv2d(x, W, None, problem)) < 1e-4
    assert np.isfinite(cpuconv.compile(onnx_model("1"))(x)).all()

def elsewhere(enter, leave):
    '''A thread that enters something and stays there until it may leave; it has entered when this returns.'''
    entered = threading.Event()
    def stay():
        with enter:
            entered.set()
            leave()
    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait()
    return thread
"""


def run(code: str, **variables: str) -> list[str]:
    """What a process prints that runs the code after the prelude."""
    return processes.run("-c", f"SECONDS = {SECONDS}\n{PRELUDE}{code}", **variables).stdout.splitlines()


COMPILERS = """
from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUTarget
from cpuconv.runtime import machine_code
from cpuconv.runtime.code.cache import load_or_compile

class Compiling:
    '''As in the middle of the compilation of a micro-kernel.'''
    def __enter__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.compile)
        self.thread.start()
        self.begun.wait()
    def compile(self):
        def compile_():
            with machine_code._lock:
                self.begun.set()
                self.go_on.wait()
            raise KeyError
        try:
            load_or_compile("none", "none", "", compile_)
        except KeyError:
            pass
    def __exit__(self, *error):
        self.go_on.set()
        self.thread.join()

for inside in (
    Compiling(),
    global_compiler_lock,
    vars(CPUTarget)["_toplevel_target_context"]._lock,
    ffi.lib._lock,
    session.current.choices._lock,
    session.current.weights._lock,
    session.current.cache._lock,
    session.current.untuned._lock,
):
    thread = elsewhere(inside, lambda: time.sleep(0.3))
    print(ended(forked(right), SECONDS) or "well")
    thread.join()
right()
"""


def test_a_child_does_not_find_a_compiler_or_a_lock_in_use() -> None:
    """The fork waits for the thread that is in it."""
    assert run(COMPILERS) == ["well"] * 8


LATE = """
import os
from cpuconv.runtime.code import compiler_lock
locks.FORK_SECONDS = 0.1
making = cpuconv.compile(onnx_model("N"))
for lock in (compiler_lock.lock, making._programs.making):
    go_on = threading.Event()
    thread = elsewhere(lock, go_on.wait)
    caught = []
    def child():
        right()
        making(X)
        os.write(1, f"{len(caught)}\\n".encode())
    warnings.showwarning = lambda *told: caught.append(told)
    print(ended(forked(child), SECONDS) or "well", flush=True)
    go_on.set()
    thread.join()
making(X)
"""


def test_a_fork_waits_only_for_so_long() -> None:
    """Then the child says so once; and not at all for a thread that makes a program, which may take a minute."""
    assert run(LATE) == ["1", "well", "0", "well"]


OWN = """
lock = locks.Lock()
with lock:
    child = forked(lambda: lock.__exit__() or lock.__enter__())
    print(ended(child, SECONDS) or "well")
"""


def test_a_thread_may_fork_that_holds_a_lock() -> None:
    assert run(OWN) == ["well"]


COLD = """
import itertools
from cpuconv.runtime.code import kernel_files

stop, rounds = threading.Event(), threading.Semaphore(0)

def compile_ever_new():
    for size in itertools.count(4):
        if stop.is_set():
            return
        new_function(size)
        rounds.release()

made, kept = cpuconv.compile(onnx_model("1")), cpuconv.compile(onnx_model("N"))
expected = made(X)
assert (kept(X) == expected).all()
new_function(3)
# Nothing is on disk from here on, so that the thread compiles all the time.
kernel_files.folder = lambda: kernel_files.Folder(None)

def child():
    assert (made(X) == expected).all() and (kept(X) == expected).all()
    right()
    new_function(200)

thread = threading.Thread(target=compile_ever_new)
thread.start()
for at in range(8):
    rounds.acquire()
    time.sleep(0.01 * at)  # at another place of the next compilation
    print(ended(forked(child), SECONDS) or "well")
stop.set()
thread.join()
assert (made(X) == expected).all()
"""


def test_forks_while_another_thread_compiles() -> None:
    """Children run what was compiled, and compile."""
    pytest.importorskip("onnx")
    assert run(COLD) == ["well"] * 8


AT_ONCE = """
from support.running.callers import at_once
from cpuconv.runtime.code import compiler_lock

told = []
thread = elsewhere(compiler_lock.lock, lambda: time.sleep(0.3))
at_once(4, lambda _: told.append(ended(forked(right), SECONDS) or "well"))
thread.join()
right()
print(*told, sep="\\n")
"""


def test_several_threads_fork_at_once() -> None:
    assert run(AT_ONCE) == ["well"] * 4


STARTED = """
import multiprocessing, sys, threading
import numpy as np
import cpuconv
from cpuconv.runtime.code import kernel_files
from support.running.first_calls import X, new_function, onnx_model

made = expected = None

def child(path, expected):
    if made is not None:  # inherited
        assert (made(X) == expected).all()
    assert (cpuconv.load(path)(X) == expected).all()
    new_function(200)
    return True

def main(method, path):
    global made, expected
    made = cpuconv.compile(onnx_model("1"))
    expected = made(X)
    made.save(path)
    stop = threading.Event()
    def compile_others():
        size = 4
        while not stop.is_set():
            new_function(size)
            size += 1
    threads = [threading.Thread(target=compile_others, daemon=True) for _ in range(2)]
    for busy in (False, True):
        if busy:
            new_function(3)
            # Nothing is on disk, so that they compile.
            kernel_files.folder = lambda: kernel_files.Folder(None)
            for thread in threads:
                thread.start()
        with multiprocessing.get_context(method).Pool(2) as pool:
            jobs = [pool.apply_async(child, (path, expected)) for _ in range(4)]
            assert all(job.get(60) for job in jobs)
    stop.set()
    for thread in threads:
        thread.join()
    assert (made(X) == expected).all()
    print("well")

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_pools_of_processes(method: str, tmp_path: Path) -> None:
    """Of a parent that has compiled and run a model, and while other threads of it compile."""
    pytest.importorskip("onnx")
    (tmp_path / "pool.py").write_text(STARTED)
    done = processes.run(str(tmp_path / "pool.py"), method, str(tmp_path / "m.cpuconv"))
    assert done.stdout.split() == ["well"]


SERVED = """
import os, threading
import numpy as np
import cpuconv
from cpuconv.runtime.code import kernel_files
from support.running.first_calls import X, new_function, onnx_model

made = cpuconv.compile(onnx_model("1"))
later = cpuconv.compile(onnx_model("N"))
expected = made(X)
first = os.getpid()
new_function(3)
# Nothing is on disk from here on, so that the thread compiles.
kernel_files.folder = lambda: kernel_files.Folder(None)

def compile_others():
    for size in range(4, 150):
        if os.getpid() != first:
            return
        new_function(size)

threading.Thread(target=compile_others, daemon=True).start()

def app(environ, start_response):
    new_function(200)
    same = os.getpid() != first and (made(X) == expected).all() and (later(X) == expected).all()
    start_response("200 OK" if same else "500 Wrong", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


class _Connection(http.client.HTTPConnection):
    """To a server behind a socket in a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(str(self._path))


@pytest.mark.skipif(importlib.util.find_spec("gunicorn") is None, reason="gunicorn is not installed")
@pytest.mark.parametrize("threads", ["1", "4"])
def test_gunicorn_with_preload(threads: str, tmp_path: Path) -> None:
    """The application compiles and runs in the master, which still compiles when it forks its workers."""
    pytest.importorskip("onnx")
    (tmp_path / "served.py").write_text(SERVED)
    place = tmp_path / "socket"
    options = ("--preload", "--workers", "2", "--threads", threads, "--bind", f"unix:{place}", "--timeout", "60")
    environ = {**os.environ, "PYTHONPATH": f"{processes.PATH}{os.pathsep}{tmp_path}"}
    log = tmp_path / "log"
    with log.open("w") as file:
        command = python("-m", "gunicorn", *options, "served:app")
        server = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=file, stderr=file, start_new_session=True)
    try:
        events.until(lambda: place.exists() or server.poll() is not None)
        assert server.poll() is None, log.read_text()
        answers = []

        def ask(_: int) -> None:
            for _ in range(4):
                connection = _Connection(place)
                connection.request("GET", "/")
                answers.append(connection.getresponse().status)
                connection.close()

        callers.at_once(4, ask)
        assert answers == [200] * 16, log.read_text()
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            raise
    assert "WORKER TIMEOUT" not in log.read_text()
