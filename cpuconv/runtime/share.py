"""How the parts of a row are shared by who is running.

The parts of a row are as many for each worker. A worker begins with a run of its own, whose output lies where its
next layer's input does, and takes it from the front; with none left it takes from the back of the others'. So a worker
that another process delays has less to do, and the part that it is at is all that the others wait for. What is left
of a run is one word, changed by compare-and-swap: the first part, and 2³² times the part after the last.

A row lies in memory as a line of words that all read, a line for `parallel_for`, and a line for each worker.
"""

from __future__ import annotations

import numpy as np

from cpuconv.runtime.kernel import inline
from cpuconv.runtime.words import call_kernel, load, put, store, swap_if, word

LINE = 8  # words of a cache line
LINE_BYTES = 8 * LINE
ENTRY, BLOCK, PARTS, WORKERS = range(4)  # words of a row
START, COUNT, STEP = range(LINE, LINE + 3)  # what parallel_for is told: items 0 … workers-1, in steps of 1
FIRST_WORKER = 2  # line of the first
LEFT, NUMBER, ROW, MAIL = range(4)  # words of a worker; MAIL is that of the thread that is asked for it

_LOW = 0xFFFFFFFF


@inline
def run(parts, worker, workers):
    """The run that a worker begins with."""
    return (parts * (worker + 1) // workers << 32) | (parts * worker // workers)


@inline
def is_empty(left):
    """Whether no part is left of a run."""
    return (left & 0xFFFFFFFF) >= (left >> 32)


@inline
def front(left):
    """The first part of a run, and the rest."""
    return left & 0xFFFFFFFF, left + 1


@inline
def back(left):
    """The last part of a run, and the rest."""
    return (left >> 32) - 1, left - (1 << 32)


@inline
def _take(place, own):
    """A part of the run at `place`, from the front if it is the worker's own, or -1."""
    while True:
        left = load(place)
        if is_empty(left):
            return -1
        part, rest = front(left) if own else back(left)
        if swap_if(place, left, rest):
            return part


@inline
def begin(row, entry, block, each):
    """Make the row ready: `each` parts for each worker."""
    workers = word(row, WORKERS)
    put(row, ENTRY, entry)
    put(row, BLOCK, block)
    put(row, PARTS, each * workers)
    for worker in range(workers):
        store(row + (FIRST_WORKER + worker) * LINE_BYTES, run(each * workers, worker, workers))


@inline
def work(me):
    """Do parts of a row as the worker whose line is `me`, until none is left."""
    row = word(me, ROW)
    worker, workers = word(me, NUMBER), word(row, WORKERS)
    before = -1
    for turn in range(workers):
        victim = (worker + turn) % workers
        while True:
            part = _take(row + (FIRST_WORKER + victim) * LINE_BYTES, turn == 0)
            if part < 0:
                break
            call_kernel(word(row, ENTRY), worker, before, part, word(row, PARTS), word(row, BLOCK))
            before = part


def new_row(workers: int) -> np.ndarray:
    """A row for so many workers, on cache lines of its own."""
    raw = np.zeros((FIRST_WORKER + workers + 1) * LINE, np.int64)
    start = -raw.ctypes.data % LINE_BYTES // raw.itemsize
    row = raw[start : start + (FIRST_WORKER + workers) * LINE]
    row[[WORKERS, START, COUNT, STEP]] = workers, 0, workers, 1
    lines = row.reshape(-1, LINE)[FIRST_WORKER:]
    lines[:, NUMBER], lines[:, ROW] = range(workers), row.ctypes.data
    return row
