"""Background compilation of kernels that make a layer clearly faster, for programs that are built later.

A run uses the kernels at hand (`at_hand`) and requests better ones here. One process per cache folder compiles them
into the user's cache, at the lowest priority. It runs this interpreter, started like the helpers of `parallel_compile`.
It ends after some idle seconds or when no process can send requests; no process waits for it. A file lock, which the
process holds until it ends for any reason, shows that it runs. A process that finds the lock taken starts no other one,
and tries again with its next request. Compiled kernels stay in the cache; later programs request the others again.
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

from baselib.interpreter import python_main, starts_again
from baselib.locks import Lock
from cpuconv.runtime.code import at_hand, kernel_files
from cpuconv.runtime.code.llvm import imported
from cpuconv.runtime.code.parallel_compile import Wanted, found
from cpuconv.runtime.target import target

VARIABLE = "CPUCONV_BACKGROUND"
OFF = "0"  # value of the variable that turns background compilation off
LOCK = "background.lock"
MIN_SAVING = 0.05  # min. saving for which a kernel is compiled, as a share of the layer's modelled time
_IDLE_SECONDS = 10.0  # idle time after which the process ends
_NICE = 10
_MAX_QUEUED = 256  # max. queued requests; the oldest are dropped
_SIZE = struct.Struct("<I")
_MAX_MESSAGE_BYTES = (
    select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
)  # max. message size: pipe writes are atomic


def request(wanted: Iterable[Wanted]) -> bool:
    """Request kernels to be compiled in the background; return at once, whether they will be."""
    return _requests.request(wanted)


class _Requests:
    """The requests of this process, and the compiling process that it has started."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner = os.getpid()
        self._ended = False
        self._sent: set[str] = set()  # names of kernels that were sent
        self._queued: dict[str, bytes] = {}  # queued messages by kernel name
        self._pipe = self._process = -1

    def request(self, wanted: Iterable[Wanted]) -> bool:
        if not self._may_request():
            return False
        with self._lock:
            running = self._is_running()
            for kernel, tile in wanted:
                name = at_hand.name_of(kernel, tile)
                message = pickle.dumps((kernel.module, kernel.name, tile))
                if name and name not in self._sent and _SIZE.size + len(message) <= _MAX_MESSAGE_BYTES:
                    self._queued[name] = _SIZE.pack(len(message)) + message
            while len(self._queued) > _MAX_QUEUED:
                del self._queued[next(iter(self._queued))]
            if self._queued and not running:
                self._start()
            self._send()
        return True

    def _may_request(self) -> bool:
        """Whether requests are allowed: not in a forked child, which shares its parent's pipe, nor at exit."""
        if os.environ.get(VARIABLE) == OFF or self._ended or os.getpid() != self._owner or sys.is_finalizing():
            return False
        place = kernel_files.folder()
        return _is_able() and place.path is not None and not place.trouble and starts_again()

    def _send(self) -> None:
        for name, message in list(self._queued.items()):
            try:
                os.write(self._pipe, message)
            except BlockingIOError:
                return
            except OSError:  # the process ended, or was not started
                return
            self._sent.add(name)
            del self._queued[name]

    def _is_running(self) -> bool:
        if self._process < 0:
            return False
        with contextlib.suppress(OSError):
            if os.waitpid(self._process, os.WNOHANG) == (0, 0):
                return True
        self._forget()
        return False

    def _start(self) -> None:
        """Start the compiling process, unless another process has started one."""
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
                os.close(lock)  # the child process holds it

    def _forget(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = self._process = -1
        self._sent.clear()  # kernels that it did not compile are requested again

    def end(self) -> None:
        """Stop sending requests; the compiling process finishes those it has, and ends."""
        self._ended = True


_requests = _Requests()


def _is_able() -> bool:
    """Whether the system supports it, and SIGPIPE does not kill this process when the pipe's reader ends."""
    return hasattr(os, "posix_spawn") and signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL


def locked(path: Path) -> int:
    """Return a descriptor of a locked file, or -1 if another process holds the lock.

    The lock lasts while the descriptor is open, here or in a process that inherits it.

    Raises
    ------
    OSError
        The file cannot be created.
    """
    import fcntl  # not available on all systems

    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return -1
    os.utime(path)
    return file


def _spawned(command: list[str], read: int, lock: int) -> int:
    """Start a process that reads from a pipe and holds a lock. It has no output, and its own process group, so that
    it gets no terminal signals."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        low = max(read, lock, null) + 1
        actions = [
            (os.POSIX_SPAWN_DUP2, lock, low),  # above all descriptors, so the next actions do not overwrite it
            (os.POSIX_SPAWN_DUP2, read, 0),
            (os.POSIX_SPAWN_DUP2, null, 1),
            (os.POSIX_SPAWN_DUP2, null, 2),
        ]
        return os.posix_spawnp(command[0], command, {**os.environ, VARIABLE: OFF}, file_actions=actions, setpgroup=0)
    finally:
        os.close(null)


def main(expected_target: str) -> None:
    """Compile the kernels requested on standard input, until no request comes."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    warnings.simplefilter("ignore")
    if repr(target()) != expected_target:  # the program set its target by calls, not by environment variables
        return
    imported()
    tasks = _TaskReader(0)
    while (task := tasks.next(_IDLE_SECONDS)) is not None:
        module, name, tile = task
        kernel, path = found(module, name), kernel_files.folder().path
        if path is not None:
            with contextlib.suppress(OSError):
                os.utime(path / LOCK)  # old lock files are removed as left by dead processes
        if kernel is not None and not at_hand.is_at_hand(kernel, tile):
            with contextlib.suppress(Exception):  # go on with the next kernel
                kernel.entry(tile)


class _TaskReader:
    """Messages read from a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._content = pipe, b""
        self._is_open = True

    def next(self, seconds: float) -> Any:
        """Return the next message; None after `seconds` without one, or once the pipe is closed."""
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
