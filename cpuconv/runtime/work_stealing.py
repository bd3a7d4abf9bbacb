"""How workers share the parts of a row: work stealing from runs of parts.

Each worker starts with a run of the same number of parts; its output lies where the same worker's input of the next
layer will lie. It takes parts from the front of its own run, and when that is empty, from the back of another worker's.
So a worker that another process delays does fewer parts, and the others wait at most for the part that it is doing. The
rest of a run is one word, changed by compare-and-swap: the first part, plus 2³² times the part after the last.

A row lies in memory as one line of words that all workers read, one line for `parallel_for`, and a line for each
worker.
"""

from __future__ import annotations

import numpy as np

from cpuconv.runtime.atomics import call_kernel, load, put, store, swap_if, word
from cpuconv.runtime.kernel import inline

LINE = 8  # words of a cache line
LINE_BYTES = 8 * LINE
ENTRY, BLOCK, PARTS, WORKERS = range(4)  # words of a row
START, COUNT, STEP = range(LINE, LINE + 3)  # what parallel_for is told: items 0 … workers-1, in steps of 1
FIRST_WORKER = 2  # line of the first
LEFT, NUMBER, ROW, MAIL = range(4)  # words of a worker; MAIL is that of the thread that is asked for it

_LOW = 0xFFFFFFFF  # the half of a word that holds the first part


@inline
def run(parts, worker, workers):
    """The run that a worker begins with."""
    return (parts * (worker + 1) // workers << 32) | (parts * worker // workers)


@inline
def is_empty(left):
    """Whether no part is left of a run."""
    return (left & _LOW) >= (left >> 32)


@inline
def front(left):
    """The first part of a run, and the rest."""
    return left & _LOW, left + 1


@inline
def back(left):
    """The last part of a run, and the rest."""
    return (left >> 32) - 1, left - (1 << 32)


@inline
def _take(place, own):
    """Take a part of the run at `place`, from the front if it is the worker's own; -1 if none is left."""
    while True:
        left = load(place)
        if is_empty(left):
            return -1
        part, rest = front(left) if own else back(left)
        if swap_if(place, left, rest):
            return part


@inline
def begin(row, entry, block, each):
    """Prepare the row: `each` parts for each worker."""
    workers = word(row, WORKERS)
    put(row, ENTRY, entry)
    put(row, BLOCK, block)
    put(row, PARTS, each * workers)
    for worker in range(workers):
        store(row + (FIRST_WORKER + worker) * LINE_BYTES, run(each * workers, worker, workers))


@inline
def work(me):
    """As the worker whose line is `me`, do parts of a row until none is left."""
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
    """A row for this number of workers, on cache lines of its own."""
    raw = np.zeros((FIRST_WORKER + workers + 1) * LINE, np.int64)
    start = -raw.ctypes.data % LINE_BYTES // raw.itemsize
    row = raw[start : start + (FIRST_WORKER + workers) * LINE]
    row[[WORKERS, START, COUNT, STEP]] = workers, 0, workers, 1
    lines = row.reshape(-1, LINE)[FIRST_WORKER:]
    lines[:, NUMBER], lines[:, ROW] = range(workers), row.ctypes.data
    return row
