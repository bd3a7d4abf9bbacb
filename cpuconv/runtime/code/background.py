"""Kernels that would make a layer clearly faster are compiled in the background, for programs that are built later.

A run takes what is at hand (`at_hand`) and names here what it would rather have. One process for each cache folder
compiles that, at the lowest priority, into the user's cache. It is this interpreter, started as helpers are
(`together`), and ends when it has had nothing to do for some seconds, or when nobody can ask it any more; nobody waits
for it. A file's lock tells that there is one: it is held by the process, whatever becomes of it. Who finds it held
starts none, and asks again with the next kernel. What has been compiled when it ends is kept, the rest is named again
by the next program that would rather have it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune.interpreter import python_main, starts_again
from autotune.locks import Lock
from cpuconv.runtime.code import at_hand, kernel_files
from cpuconv.runtime.code.llvm import imported
from cpuconv.runtime.code.together import Wanted, found
from cpuconv.runtime.target import target

VARIABLE = "CPUCONV_BACKGROUND"
OFF = "0"  # the variable's value with which nothing is compiled in the background
LOCK = "background.lock"
WORTH = 0.05  # of a layer's time by the model: what saves more is compiled
_IDLE_SECONDS = 10.0  # without a kernel to compile, before the process ends
_NICE = 10
_MOST = 256  # kernels that wait to be told to a process, those of the latest programs
_SIZE = struct.Struct("<I")
_MOST_BYTES = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512  # of a message: a pipe takes it whole, or not


def want(wanted: Iterable[Wanted]) -> bool:
    """Have kernels compiled in the background; returns at once, whether they will be."""
    return _asking.want(wanted)


class _Asking:
    """What this process has asked for, and the process that it has started."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner = os.getpid()
        self._ended = False
        self._told: set[str] = set()  # names of kernels
        self._waiting: dict[str, bytes] = {}  # messages by names
        self._pipe = self._process = -1

    def want(self, wanted: Iterable[Wanted]) -> bool:
        if not self._may_ask():
            return False
        with self._lock:
            running = self._is_running()
            for kernel, tile in wanted:
                name = at_hand.name_of(kernel, tile)
                message = pickle.dumps((kernel.module, kernel.name, tile))
                if name and name not in self._told and _SIZE.size + len(message) <= _MOST_BYTES:
                    self._waiting[name] = _SIZE.pack(len(message)) + message
            while len(self._waiting) > _MOST:
                del self._waiting[next(iter(self._waiting))]
            if self._waiting and not running:
                self._start()
            self._tell()
        return True

    def _may_ask(self) -> bool:
        """Not in a forked child, which shares its parent's pipe, nor while the interpreter ends."""
        if os.environ.get(VARIABLE) == OFF or self._ended or os.getpid() != self._owner or sys.is_finalizing():
            return False
        place = kernel_files.folder()
        return _is_able() and place.path is not None and not place.trouble and starts_again()

    def _tell(self) -> None:
        for name, message in list(self._waiting.items()):
            try:
                os.write(self._pipe, message)
            except BlockingIOError:
                return
            except OSError:  # it ended, or there is none
                return
            self._told.add(name)
            del self._waiting[name]

    def _is_running(self) -> bool:
        if self._process < 0:
            return False
        with contextlib.suppress(OSError):
            if os.waitpid(self._process, os.WNOHANG) == (0, 0):
                return True
        self._forget()
        return False

    def _start(self) -> None:
        """Start a process, unless another process has."""
        path = kernel_files.folder().path
        assert path is not None
        with contextlib.suppress(OSError):
            lock = locked(path / LOCK)
            if lock < 0:
                return
            read, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            try:
                self._process = _spawned(python_main(__name__, repr(target())), read, lock)
                atexit.register(self.end)
            finally:
                os.close(read)
                os.close(lock)  # the process holds it

    def _forget(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = self._process = -1
        self._told.clear()  # what it did not compile is asked for again

    def end(self) -> None:
        """Ask for nothing any more; the process compiles what it was told, and ends."""
        self._ended = True


_asking = _Asking()


def _is_able() -> bool:
    """Whether this system has what is needed; a pipe whose reader has ended must not end this process."""
    return hasattr(os, "posix_spawn") and signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL


def locked(path: Path) -> int:
    """A descriptor of a file that is locked as long as it is open, here or in a process that was given it; -1 where
    another has locked it.

    Raises
    ------
    OSError
        The file cannot be made.
    """
    import fcntl  # not every system has it

    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return -1
    os.utime(path)
    return file


def _spawned(command: list[str], read: int, lock: int) -> int:
    """A process that reads from a pipe and holds a lock; what it writes goes nowhere, and signals of the terminal do
    not reach it."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        low = max(read, lock, null) + 1
        actions = [
            (os.POSIX_SPAWN_DUP2, lock, low),  # no standard descriptor takes its place
            (os.POSIX_SPAWN_DUP2, read, 0),
            (os.POSIX_SPAWN_DUP2, null, 1),
            (os.POSIX_SPAWN_DUP2, null, 2),
        ]
        return os.posix_spawnp(command[0], command, {**os.environ, VARIABLE: OFF}, file_actions=actions, setpgroup=0)
    finally:
        os.close(null)


def main(asked: str) -> None:
    """Compile what is told on the standard input, until there is nothing more."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    warnings.simplefilter("ignore")
    if repr(target()) != asked:  # chosen in the program, not by variables
        return
    imported()
    told = _Told(0)
    while (task := told.next(_IDLE_SECONDS)) is not None:
        module, name, tile = task
        kernel, path = found(module, name), kernel_files.folder().path
        if path is not None:
            with contextlib.suppress(OSError):
                os.utime(path / LOCK)  # old ones are removed, as of processes that have died
        if kernel is not None and not at_hand.is_at_hand(kernel, tile):
            with contextlib.suppress(Exception):  # the next one may be compiled
                kernel.entry(tile)


class _Told:
    """The messages of a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._content = pipe, b""
        self._is_open = True

    def next(self, seconds: float) -> Any:
        """The next one; None where none comes in time, or nobody can send one."""
        end = time.monotonic() + seconds
        while True:
            if len(self._content) >= _SIZE.size:
                size = _SIZE.size + _SIZE.unpack_from(self._content)[0]
                if len(self._content) >= size:
                    message, self._content = self._content[_SIZE.size : size], self._content[size:]
                    return pickle.loads(message)
            if not self._is_open or not select.select([self._pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            content = os.read(self._pipe, 1 << 16)
            self._content += content
            self._is_open = bool(content)
