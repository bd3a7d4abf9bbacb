"""Pausing Python's garbage collector of cycles while many long-lived objects are created.

Python searches for cycles whenever 700 more objects were created than freed, and occasionally among all objects.
Objects created by an import, or by compiling a network, are long-lived: they are scanned repeatedly, and nothing is
found. When the collector resumes, they have already been moved to the oldest generation, which is rarely scanned.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator

from baselib.locks import Lock

PAUSED_THRESHOLD = 50_000
"""New objects after which a paused collector runs nevertheless: other threads may create cycles meanwhile."""

MAX_MOVED = 400_000
"""Objects moved to the oldest generation without a scan after which the collector scans all."""

_changing = Lock(brief=False)  # open in a child of fork; `_of_child` repairs the state that it guards
_pauses: Counter[int] = Counter()  # nested pauses by thread
_before = 0
_moved = 0
_others_freeze = False  # whether other code froze objects: counting them takes time in proportion to their number


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collector; may be nested, and used by several threads. Thresholds that others set meanwhile stay."""
    global _before
    thread = threading.get_ident()
    with _changing:
        threshold, *older = gc.get_threshold()
        if not _pauses and 0 < threshold < PAUSED_THRESHOLD:  # 0: the collector is off
            _before = threshold
            gc.set_threshold(PAUSED_THRESHOLD, *older)
        _pauses[thread] += 1
    try:
        yield
    finally:
        with _changing:
            _pauses[thread] -= 1
            _end()


def _end() -> None:
    """Resume the collector, unless a thread still pauses it."""
    global _before
    for thread in [thread for thread, count in _pauses.items() if count <= 0]:
        del _pauses[thread]
    if not _pauses and _before:
        threshold, *older = gc.get_threshold()
        if threshold == PAUSED_THRESHOLD:
            _move_to_oldest()
            gc.set_threshold(_before, *older)
        _before = 0


def _move_to_oldest() -> None:
    """Move all objects to the oldest generation in constant time; do nothing if other code has frozen objects."""
    global _moved, _others_freeze
    _others_freeze = _others_freeze or not hasattr(gc, "freeze") or gc.get_freeze_count() > 0
    if _others_freeze:
        return
    _moved += gc.get_count()[0]
    if _moved > MAX_MOVED:
        _moved = 0
        gc.collect()
        return
    gc.freeze()
    gc.unfreeze()


def _of_child() -> None:
    """Drop the pauses of other threads in a child of fork, which has one thread."""
    for thread in [*_pauses]:
        if thread != threading.get_ident():
            del _pauses[thread]
    _end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_child)
