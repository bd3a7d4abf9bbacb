"""Our own threads, which help callers. Each has a mailbox: a word where a caller requests it as a worker of a row.

When its row is done, a caller withdraws requests that no thread has begun, and does not wait for these threads. So a
core that is busy with another process costs only its share of help. A barrier, as at the end of OpenMP's parallel
regions, would cost the rest of that process's time slice. Concurrent callers need no lock: a thread helps one of them,
and a caller without idle threads works alone. A thread polls its mailbox briefly and then sleeps on it (futex(2)). So
does a caller at the end, so that the system can move the awaited thread to the caller's core. With many threads, a
join waits for cache lines of other cores; a caller fetches all of them before it uses the first, so that they overlap.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import platform
import sys
import time

import numpy as np

from cpuconv.runtime.atomics import call_5, fetch, fetch_to_write, load, pause, put, store, swap_if, word
from cpuconv.runtime.float_environment import set_default
from cpuconv.runtime.kernel import code_of, inline
from cpuconv.runtime.work_stealing import FIRST_WORKER, LINE, LINE_BYTES, MAIL, WORKERS, work

IDLE, ASLEEP = 0, 2
"""Values of a mailbox without a request. With one, it has the address of the worker's line, plus these states:"""
_TAKEN, _AWAITED = 1, 3

THREADS, IDLE_PAUSES, END_PAUSES, SYSCALL, FUTEX, CLOSED = range(6)  # words of the board; the threads' lines follow
BOARD = 1  # word of a thread's line with the board's address; word 0 is the mailbox
_WAIT, _WAKE = 128, 129  # process-private operations of futex(2)
_ALL = 1 << 30
_NO_TIMEOUT = 0  # passed explicitly: else the system reads a timeout from whatever address the register contains
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # numbers of the system call

IDLE_SECONDS = 20e-6  # time that a thread polls its mailbox before it sleeps
END_SECONDS = 10e-6  # time that a caller polls the mailbox of a working thread before it sleeps and frees the core
_CALIBRATED, _TRIALS = 1000, 5  # pauses per trial, trials
_EXIT_TIMEOUT, _POLL_SECONDS = 0.5, 1e-4  # seconds to wait for the threads at exit; seconds between two checks


@inline
def _sleep_while(board, place, value):
    """Sleep while the word at `place` is `value`."""
    while load(place) == value:
        call_5(word(board, SYSCALL), word(board, FUTEX), place, _WAIT, value & 0xFFFFFFFF, _NO_TIMEOUT)


@inline
def _wake(board, place):
    call_5(word(board, SYSCALL), word(board, FUTEX), place, _WAKE, _ALL, _NO_TIMEOUT)


@inline
def _watch(place, value, pauses):
    """Poll the word at `place` at most `pauses` times; return whether it differs from `value`."""
    for _ in range(pauses):
        if load(place) != value:
            return True
        pause()
    return False


@inline
def ask(board, row):
    """Request idle threads as workers 1, 2, … of a row; return the number of workers, including the caller."""
    workers, found = word(row, WORKERS), 1
    for thread in range(min(word(board, THREADS), workers - 1)):
        fetch_to_write(board + (1 + thread) * LINE_BYTES)
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
    """Withdraw the requests that no thread has begun, and wait for the other threads."""
    for worker in range(1, workers):
        fetch(word(row + (FIRST_WORKER + worker) * LINE_BYTES, MAIL))
    for worker in range(1, workers):
        line = row + (FIRST_WORKER + worker) * LINE_BYTES
        mail = word(line, MAIL)
        taken = line + _TAKEN
        if load(mail) == line and swap_if(mail, line, IDLE) or _watch(mail, taken, word(board, END_PAUSES)):
            continue
        if swap_if(mail, taken, line + _AWAITED):
            _sleep_while(board, mail, line + _AWAITED)


def _help(mail):  # compiled below: the main function of a thread
    board = word(mail, BOARD)
    set_default()  # the thread inherited the environment of its creator
    while True:
        _watch(mail, IDLE, word(board, IDLE_PAUSES))
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


class Helpers:
    """Threads that wait for requests; created with pthread_create, not by Python.

    They only run compiled code, so they need neither the GIL nor the module `threading`, which programs may replace.

    Attributes
    ----------
    address : int
        Address of the board, which contains the mailboxes.
    """

    layer = "own"
    guard = contextlib.nullcontext()
    parallel_for = 0

    def __init__(self, threads: int) -> None:
        self.board = new_board(threads)
        self.address = self.board.ctypes.data
        self._life = code_of(_help, 1).function(ctypes.CFUNCTYPE(None, ctypes.c_void_p))
        self._threads: list[tuple[int, ctypes.c_void_p]] = []  # index of the mailbox in the board, and handle
        for place in range(LINE, (1 + threads) * LINE, LINE):
            handle, mail = ctypes.c_void_p(), ctypes.c_void_p(self.address + 8 * place)
            if ctypes.CDLL(None).pthread_create(ctypes.byref(handle), None, self._life, mail) != 0:
                break  # run with fewer threads
            self._threads.append((place, handle))
        atexit.register(self.close, os.getpid())

    def close(self, process: int) -> bool:
        """End the threads, as before the process exits and frees compiled code; return whether all ended in time."""
        if os.getpid() != process:  # a child of fork has no such threads
            return True
        libc = ctypes.CDLL(None)
        self.board[CLOSED] = 1
        end = time.monotonic() + _EXIT_TIMEOUT
        while self._threads and time.monotonic() < end:
            place, handle = self._threads[-1]
            if self.board[place] == ASLEEP:
                self.board[place] = IDLE
                libc.syscall(*map(ctypes.c_long, (_number(), self.address + 8 * place, _WAKE, _ALL)))
            if libc.pthread_tryjoin_np(handle, None) == 0:
                self._threads.pop()
            else:
                time.sleep(_POLL_SECONDS)
        return not self._threads


def new_board(threads: int) -> np.ndarray:
    """Return a board with the mailboxes of `threads` threads, aligned to cache lines."""
    raw = np.zeros((2 + threads) * LINE, np.int64)
    start = -raw.ctypes.data % LINE_BYTES // raw.itemsize
    board = raw[start : start + (1 + threads) * LINE]
    system_call = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0
    pauses = [max(1, round(seconds / _pause_seconds())) for seconds in (IDLE_SECONDS, END_SECONDS)]
    board[[THREADS, IDLE_PAUSES, END_PAUSES, SYSCALL, FUTEX]] = threads, *pauses, system_call, _number()
    board.reshape(-1, LINE)[1:, BOARD] = board.ctypes.data
    return board


def available() -> bool:
    """Whether threads can sleep on a word (on Linux only)."""
    return sys.platform == "linux" and _number() != 0


def _number() -> int:
    """Return the number of the futex system call; 0 if unknown."""
    return _FUTEX.get(platform.machine(), 0) if sys.maxsize > 1 << 32 else 0


@functools.cache
def _pause_seconds() -> float:
    """Return the time of one poll of a word, in seconds."""
    pauses = code_of(_pauses, 1).function(ctypes.CFUNCTYPE(None, ctypes.c_int64))
    times = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        pauses(_CALIBRATED)
        times.append(time.perf_counter() - start)
    return min(times) / _CALIBRATED
