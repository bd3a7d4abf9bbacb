"""Threads of our own that help callers: each has a mailbox, a word in which a caller asks it to be a worker of a row.

A caller does not wait for a thread that has not begun when its row is done: it takes the request back. So a core that
is busy with another process costs nothing but its help, where a barrier, as at the end of OpenMP's parallel regions,
costs the rest of that process's time slice. Callers at once need no lock: a thread helps one of them, and who finds
none idle works alone. A thread looks at its mailbox for a moment, and then sleeps on it (futex(2)).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import platform
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from numba import njit, types

from cpuconv.runtime.cache import load_or_compile
from cpuconv.runtime.kernel import OPTIONS, compile_entry, inline
from cpuconv.runtime.share import FIRST_WORKER, LINE, LINE_BYTES, MAIL, WORKERS, work
from cpuconv.runtime.words import call_4, load, pause, put, store, swap_if, word

IDLE, ASLEEP = 0, 2
"""What a mailbox says without a request. With one, it holds the address of the worker's line, plus a state:"""
_TAKEN, _AWAITED = 1, 3

THREADS, PAUSES, SYSCALL, FUTEX, CLOSED = range(5)  # words of the board; a line each for mailboxes follows
_WAIT, _WAKE = 128, 129  # operations of futex(2), within a process
_ALL = 1 << 30
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # numbers of the system call

WATCHED = 100e-6  # seconds that a thread looks at a word before it sleeps
_CALIBRATED = 1000  # pauses of a trial
_PATIENCE = 0.2  # seconds, for a thread to end with the process


@inline
def _sleep_while(board, place, value):
    """Sleep while the word at `place` is `value`."""
    while load(place) == value:
        call_4(word(board, SYSCALL), word(board, FUTEX), place, _WAIT, value & 0xFFFFFFFF)


@inline
def _wake(board, place):
    call_4(word(board, SYSCALL), word(board, FUTEX), place, _WAKE, _ALL)


@inline
def _watch(place, value, pauses):
    """Whether the word at `place` is no longer `value`, looked at so many times."""
    for _ in range(pauses):
        if load(place) != value:
            return True
        pause()
    return False


@inline
def ask(board, row):
    """Ask idle threads to be workers 1, 2, … of a row; the number of workers, the caller included."""
    workers, found = word(row, WORKERS), 1
    for thread in range(word(board, THREADS)):
        if found == workers:
            break
        mail = board + (1 + thread) * LINE_BYTES
        line = row + (FIRST_WORKER + found) * LINE_BYTES
        state = load(mail)
        if state in (IDLE, ASLEEP) and swap_if(mail, state, line):
            if state == ASLEEP:
                _wake(board, mail)
            put(line, MAIL, mail)
            found += 1
    return found


@inline
def collect(board, row, workers):
    """Take back what no thread has begun, and wait for the others."""
    for worker in range(1, workers):
        line = row + (FIRST_WORKER + worker) * LINE_BYTES
        mail = word(line, MAIL)
        taken = line + _TAKEN
        if swap_if(mail, line, IDLE) or _watch(mail, taken, word(board, PAUSES)):
            continue
        if swap_if(mail, taken, line + _AWAITED):
            _sleep_while(board, mail, line + _AWAITED)


def _help(board, mail):  # compiled below
    while True:
        _watch(mail, IDLE, word(board, PAUSES))
        if load(board + 8 * CLOSED) != 0:
            return
        line = load(mail)
        if line == IDLE:
            if swap_if(mail, IDLE, ASLEEP):
                _sleep_while(board, mail, ASLEEP)
        elif swap_if(mail, line, line + _TAKEN):
            work(line)
            if not swap_if(mail, line + _TAKEN, IDLE):
                store(mail, IDLE)
                _wake(board, mail)


def _pauses(count):  # compiled below
    for _ in range(count):
        pause()


def _compiled(function: Callable[..., None], words: int) -> Callable[..., None]:
    """The function of so many words, called without the interpreter's lock."""
    signature = (types.int64,) * words
    name = function.__name__
    code = load_or_compile(name, __name__, "", lambda: compile_entry(njit(**OPTIONS)(function), signature))
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words)(code.address)
    call.code = code  # lives as long
    return call


class Helpers:
    """So many threads that wait for requests; `address` is that of their board."""

    layer = "own"
    guard = contextlib.nullcontext()
    parallel_for = 0

    def __init__(self, threads: int) -> None:
        self.board = new_board(threads)
        self.address = self.board.ctypes.data
        help_ = _compiled(_help, 2)
        self._threads = [
            threading.Thread(
                target=help_, args=(self.address, self.address + (1 + i) * LINE_BYTES), name=f"cpuconv-{i}", daemon=True
            )
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """End the threads that have nothing to do: none may run compiled code when that is freed with the process."""
        self.board[CLOSED] = 1
        call = ctypes.CDLL(None).syscall
        for i, thread in enumerate(self._threads):
            mail = (1 + i) * LINE
            if self.board[mail] == ASLEEP:
                self.board[mail] = IDLE
                call(*(ctypes.c_long(int(word)) for word in (_number(), self.address + 8 * mail, _WAKE, _ALL)))
            thread.join(_PATIENCE)


def new_board(threads: int) -> np.ndarray:
    """A board with the mailboxes of so many threads, on cache lines of its own."""
    raw = np.zeros((2 + threads) * LINE, np.int64)
    board = raw[-raw.ctypes.data % LINE_BYTES // raw.itemsize :]
    system_call = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value
    board[[THREADS, PAUSES, SYSCALL, FUTEX]] = threads, _pauses_watched(), system_call, _number()
    return board


def available() -> bool:
    """Whether threads can sleep on a word here: on Linux."""
    return sys.platform == "linux" and _number() is not None


def _number() -> int | None:
    return _FUTEX.get(platform.machine()) if sys.maxsize > 1 << 32 else None


def _pauses_watched() -> int:
    """Pauses that take `WATCHED` seconds."""
    pauses = _compiled(_pauses, 1)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        pauses(_CALIBRATED)
        times.append(time.perf_counter() - start)
    return max(1, round(WATCHED * _CALIBRATED / min(times)))
