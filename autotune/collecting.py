"""The collector of unreachable cycles, at rest while much is made that stays.

Python looks for cycles whenever 700 objects more were made than freed, and now and then through all there are. What a
package makes while it is imported, or a network while it is compiled, stays: it is gone through ever again, and nothing
is found.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from autotune.locks import Lock

AT_REST = 50_000
"""Objects made and not freed after which the collector looks all the same: other threads may leave cycles meanwhile."""

_changing = Lock()
_resting = 0
_before = 0


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """Let the collector rest; several threads may, and one within itself. What others set meanwhile stays."""
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    global _resting, _before
    with _changing:
        threshold, *older = gc.get_threshold()
        if not _resting and 0 < threshold < AT_REST:  # 0: it is off
            _before = threshold
            gc.set_threshold(AT_REST, *older)
        _resting += 1


def _end() -> None:
    global _resting, _before
    with _changing:
        _resting -= 1
        if not _resting and _before:
            threshold, *older = gc.get_threshold()
            if threshold == AT_REST:
                gc.set_threshold(_before, *older)
            _before = 0
