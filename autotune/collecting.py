"""The collector of unreachable cycles, at rest while much is made that stays.

Python looks for cycles whenever 700 objects more were made than freed, and now and then through all there are. What a
package makes while it is imported, or a network while it is compiled, stays: it is gone through ever again, and nothing
is found. So when it works again, that has already moved to the oldest objects, which are looked through seldom.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator

from autotune.locks import Lock

AT_REST = 50_000
"""Objects made and not freed after which the collector looks all the same: other threads may leave cycles meanwhile."""

MOST_MOVED = 400_000
"""Objects that were moved to the oldest unseen after which the collector looks through all."""

_changing = Lock(brief=False)  # in a child of fork it is open, and `_of_child` puts right what it guards
_resting: Counter[int] = Counter()  # by thread
_before = 0
_moved = 0
_others_freeze = False  # somebody else froze objects once: to count them again takes longer the more they are


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """Let the collector rest; several threads may, and one within itself. What others set meanwhile stays."""
    global _before
    thread = threading.get_ident()
    with _changing:
        threshold, *older = gc.get_threshold()
        if not _resting and 0 < threshold < AT_REST:  # 0: it is off
            _before = threshold
            gc.set_threshold(AT_REST, *older)
        _resting[thread] += 1
    try:
        yield
    finally:
        with _changing:
            _resting[thread] -= 1
            _end()


def _end() -> None:
    """Let the collector work again, if no thread wants it to rest."""
    global _before
    for thread in [thread for thread, count in _resting.items() if count <= 0]:
        del _resting[thread]
    if not _resting and _before:
        threshold, *older = gc.get_threshold()
        if threshold == AT_REST:
            _move_to_oldest()
            gc.set_threshold(_before, *older)
        _before = 0


def _move_to_oldest() -> None:
    """Count all objects among the oldest, at no cost for each; where somebody has frozen some, they stay so."""
    global _moved, _others_freeze
    _others_freeze = _others_freeze or not hasattr(gc, "freeze") or gc.get_freeze_count() > 0
    if _others_freeze:
        return
    _moved += gc.get_count()[0]
    if _moved > MOST_MOVED:
        _moved = 0
        gc.collect()
        return
    gc.freeze()
    gc.unfreeze()


def _of_child() -> None:
    """A child of fork has one thread: what others wanted ends."""
    for thread in [*_resting]:
        if thread != threading.get_ident():
            del _resting[thread]
    _end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_child)
