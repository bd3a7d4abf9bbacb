"""The launcher: a compiled function that runs a program, an int64 table of (entry, argument block, parts per worker).

The caller and its helper threads share the parts of a row (`runtime.work_stealing`). The threads are our own
(`runtime.thread_pool`) or those of Numba's threading layer. In the second case, the row is passed to the layer's
`parallel_for`, the function behind Numba's own parallel loops. Its signature is the same in all three layers:
parallel_for(body, args, dims, steps, data, inner_ndim, array_count, threads) calls body(args, dims, steps, data) for
chunks of `dims[0]` items that start at address `args[0]`. So no kernel is compiled with `parallel=True`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.runtime.atomics import call_8, call_kernel, word
from cpuconv.runtime.code.cache import Code
from cpuconv.runtime.float_environment import restore, set_default
from cpuconv.runtime.kernel import code_of
from cpuconv.runtime.thread_pool import ask, collect
from cpuconv.runtime.threads import pool, usable_threads
from cpuconv.runtime.work_stealing import COUNT, FIRST_WORKER, LINE_BYTES, START, STEP, WORKERS, begin, new_row, work

_TABLE, _ROWS, _ROW, _BOARD, _PARALLEL_FOR, _BODY = range(6)  # indexes of words in a record
_COLUMNS = 3


def _layer_body(args, dims, steps, row):  # compiled below
    before, first = set_default(), word(args, 0)
    for worker in range(first, first + word(dims, 0)):
        work(row + (FIRST_WORKER + worker) * LINE_BYTES)
    restore(before)


def _run(record):  # compiled below
    before = set_default()
    table, row, board = word(record, _TABLE), word(record, _ROW), word(record, _BOARD)
    for index in range(word(record, _ROWS)):
        entry = word(table, _COLUMNS * index)
        block = word(table, _COLUMNS * index + 1)
        each = word(table, _COLUMNS * index + 2)
        if row == 0 or each == 0:
            call_kernel(entry, 0, -1, 0, 1, block)
            continue
        begin(row, entry, block, each)
        if board != 0:
            workers = ask(board, row)
            work(row + FIRST_WORKER * LINE_BYTES)
            collect(board, row, workers)
        else:
            parallel_for, body = word(record, _PARALLEL_FOR), word(record, _BODY)
            told = (row + 8 * START, row + 8 * COUNT, row + 8 * STEP)
            call_8(parallel_for, body, told[0], told[1], told[2], row, 0, 1, word(row, WORKERS))
    restore(before)


class _Launcher:
    """The launcher, with the interface of a kernel."""

    module, name, fields = __name__, f"{__name__}.LAUNCHER", ()

    def entry(self, tile: None = None) -> Code:
        """Return its code, compiled or loaded."""
        return code_of(_run, 1)


LAUNCHER = _Launcher()


@functools.cache
def _launcher() -> Any:
    """Return the launcher as a C function of a record's address; it releases the GIL while it runs."""
    return LAUNCHER.entry().function(ctypes.CFUNCTYPE(None, ctypes.c_int64))


class Program:
    """A recorded sequence of kernel calls with their argument blocks; it owns all code and memory that these use.

    Parameters
    ----------
    rows : Sequence[tuple[Code, np.ndarray, int]]
        Compiled kernel, argument block, and parts per worker. With several parts, an idle worker steals parts of
        others; with 0, one worker runs the row.
    threads : int
        Max. threads of a run.
    kept : Sequence of object
        Owners of the memory that the argument blocks refer to, except for memory that is passed to each run.
    """

    def __init__(self, rows: Sequence[tuple[Code, np.ndarray, int]], threads: int, kept: Sequence[object] = ()) -> None:
        holds = [rows, *kept]
        table = [[code.address_for(holds), block.ctypes.data, int(each)] for code, block, each in rows]
        self._begin(np.array(table, np.int64), threads, holds)

    @classmethod
    def of(cls, table: np.ndarray, threads: int, kept: Sequence[object]) -> Program:
        """Make a program from a table (rows, 3) of entries, block addresses, and parts per worker."""
        made = cls.__new__(cls)
        made._begin(table, threads, [*kept])
        return made

    def _begin(self, table: np.ndarray, threads: int, kept: list[Any]) -> None:
        self._table, self._kept = table, kept
        self._threads = threads if table[:, 2:].any() else 1
        self._call = _launcher()
        self._serial = self._record(0)
        self._serial_address = self._serial.ctypes.data
        self._pool: Any = None

    def _record(self, row: int, board: int = 0, parallel_for: int = 0, body: int = 0) -> np.ndarray:
        return np.array([self._table.ctypes.data, len(self._table), row, board, parallel_for, body], np.int64)

    def run(self) -> None:
        """Run all rows in order; return when the last is done. Calls must not overlap."""
        if self._threads == 1 or usable_threads(self._threads) == 1:
            self._call(self._serial_address)
            return
        workers = pool()
        if self._pool is not workers:  # first run, or first run after a fork
            self._row = new_row(self._threads)
            body = 0 if workers.address else code_of(_layer_body, 4).address_for(self._kept)
            self._parallel = self._record(self._row.ctypes.data, workers.address, workers.parallel_for, body)
            self._parallel_address = self._parallel.ctypes.data
            self._pool = workers
        with workers.guard:
            self._call(self._parallel_address)
