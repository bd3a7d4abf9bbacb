"""Distribution of a row's parts to workers: work stealing from ranges of parts.

Each worker starts with a range of the same number of parts, so its output is where its input of the next layer is. It
takes parts from the front of its own range, and when that is empty, from the back of another worker's. So a worker that
another process delays computes fewer parts, and the others wait at most for its current part. The rest of a range is
one int64, changed by compare-and-swap: the first part, plus 2³² times the part after the last.

In memory, a row has one cache line that all workers read, one line for `parallel_for`, and a line per worker.
"""

from __future__ import annotations

import numpy as np

from cpuconv.runtime.atomics import call_kernel, fetch, load, put, swap_if, word
from cpuconv.runtime.kernel import inline

LINE = 8  # int64 words of a cache line
LINE_BYTES = 8 * LINE
ENTRY, BLOCK, PARTS, WORKERS = range(4)  # words of a row
START, COUNT, STEP = range(LINE, LINE + 3)  # arguments of parallel_for: items 0 … workers-1, in steps of 1
FIRST_WORKER = 2  # index of the first worker's line
LEFT, NUMBER, ROW, MAIL = range(4)  # words of a worker's line; MAIL: address of the mailbox of the requested thread

_LOW = 0xFFFFFFFF  # mask of the first part


@inline
def run(parts, worker, workers):
    """Return the initial range of a worker."""
    return (parts * (worker + 1) // workers << 32) | (parts * worker // workers)


@inline
def is_empty(left):
    """Whether a range is empty."""
    return (left & _LOW) >= (left >> 32)


@inline
def front(left):
    """Return the first part of a range, and the rest."""
    return left & _LOW, left + 1


@inline
def back(left):
    """Return the last part of a range, and the rest."""
    return (left >> 32) - 1, left - (1 << 32)


@inline
def _take(place, own):
    """Take a part of the range at `place`, from the front if it is the worker's own; return -1 if it is empty."""
    while True:
        left = load(place)
        if is_empty(left):
            return -1
        part, rest = front(left) if own else back(left)
        if swap_if(place, left, rest):
            return part


@inline
def begin(row, entry, block, each):
    """Prepare a row with `each` parts per worker; a request publishes it."""
    workers = word(row, WORKERS)
    put(row, ENTRY, entry)
    put(row, BLOCK, block)
    put(row, PARTS, each * workers)
    for worker in range(workers):
        put(row, (FIRST_WORKER + worker) * LINE, run(each * workers, worker, workers))


@inline
def work(me):
    """Compute parts of a row, as the worker whose line is `me`, until none is left."""
    row = word(me, ROW)
    worker, workers = word(me, NUMBER), word(row, WORKERS)
    before = -1
    for turn in range(workers):
        victim = (worker + turn) % workers
        if turn == 1:
            for other in range(workers):
                fetch(row + (FIRST_WORKER + other) * LINE_BYTES)
        while True:
            part = _take(row + (FIRST_WORKER + victim) * LINE_BYTES, turn == 0)
            if part < 0:
                break
            call_kernel(word(row, ENTRY), worker, before, part, word(row, PARTS), word(row, BLOCK))
            before = part


def new_row(workers: int) -> np.ndarray:
    """Return a row for `workers` workers, aligned to cache lines."""
    raw = np.zeros((FIRST_WORKER + workers + 1) * LINE, np.int64)
    start = -raw.ctypes.data % LINE_BYTES // raw.itemsize
    row = raw[start : start + (FIRST_WORKER + workers) * LINE]
    row[[WORKERS, START, COUNT, STEP]] = workers, 0, workers, 1
    lines = row.reshape(-1, LINE)[FIRST_WORKER:]
    lines[:, NUMBER], lines[:, ROW] = range(workers), row.ctypes.data
    return row
