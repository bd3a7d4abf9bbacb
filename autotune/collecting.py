"""The collector of unreachable cycles, at rest while much is made that stays.

Python looks for cycles whenever 700 objects more were made than freed, and now and then through all there are. What a
package makes while it is imported, or a network while it is compiled, stays: it is gone through ever again, and nothing
is found.
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

_changing = Lock(brief=False)  # in a child of fork it is open, and `_of_child` puts right what it guards
_resting: Counter[int] = Counter()  # by thread
_before = 0


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
            gc.set_threshold(_before, *older)
        _before = 0


def _of_child() -> None:
    """A child of fork has one thread: what others wanted ends."""
    for thread in [*_resting]:
        if thread != threading.get_ident():
            del _resting[thread]
    _end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_child)
