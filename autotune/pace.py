"""How fast the machine is now against its best of late, and waiting until it is that fast again.

On a machine that others share, moments at full speed and moments well below it take turns, and who is fastest in one
kind is not in the other. Samples are taken at full speed, as that is what a quiet machine repeats, for as long as such
moments can be had at a fair price.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from itertools import repeat

Run = Callable[[], None]

BELOW = 0.03  # the machine is at its best if the reference takes no longer than its best and this much
FADING = 0.002  # by which the best is forgotten each second: a warm machine may never again be as fast as a cold one
PATIENCE = 10.0  # seconds waited, at most, for a second of samples …
AT_ONCE = 0.2  # … and these before the first
PAUSE = 5e-4  # between two looks: moments at full speed last some 40 ms
FIRST_LOOKS = 200  # at a reference that is new, to learn its best


def clock(run: Run, loops: int = 1) -> float:
    """Seconds of one run, of so many in a row."""
    start = time.perf_counter_ns()
    for _ in repeat(None, loops):
        run()
    return max(time.perf_counter_ns() - start, 1) * 1e-9 / loops


class Pace:
    """Looks at a reference, work of known length, before and after samples; without one all are taken as they come.

    lost: how much longer than its best the reference took at the last look.
    """

    def __init__(self, reference: Run | None) -> None:
        self._reference = reference
        self._until = math.inf
        self._allowed = AT_ONCE
        self.lost = self._begun = 0.0
        self.look()

    def look(self) -> None:
        """Time the reference."""
        if self._reference is not None:
            seconds = _seconds(self._reference)
            self.lost = seconds / _best(self._reference, seconds) - 1.0

    def begin_round(self, until: float = math.inf) -> None:
        """Nothing is waited for past `until`, of `time.perf_counter()`."""
        self._begun, self._until = self.lost, until

    @property
    def moved(self) -> float:
        """By what share the reference changed since the round began."""
        return abs((1 + self.lost) / (1 + self._begun) - 1)

    def wait(self) -> None:
        """Until the machine is at its best, or patience is used up."""
        while self.lost > BELOW and self._is_patient():
            begun = time.perf_counter()
            time.sleep(PAUSE)
            self.look()
            self._allowed -= time.perf_counter() - begun

    def counts(self, seconds: float) -> bool:
        """Whether what ran for so long since the last look did so at the machine's best, or is to count all the same as
        patience is used up."""
        before = self.lost
        self.look()
        lost = max(before, self.lost)
        if lost > BELOW and self._is_patient():
            self._allowed -= seconds
            return False
        self._allowed += PATIENCE * seconds
        return True

    def _is_patient(self) -> bool:
        return self._allowed > 0 and time.perf_counter() < self._until


_bests: weakref.WeakKeyDictionary[Run, tuple[float, float]] = weakref.WeakKeyDictionary()  # seconds, and when


def _best(reference: Run, seconds: float) -> float:
    """The reference's best of late, in any race; `seconds` is what it took just now."""
    if reference not in _bests:
        for _ in range(FIRST_LOOKS):
            time.sleep(PAUSE)
            seconds = min(seconds, _seconds(reference))
    now = time.perf_counter()
    best, when = _bests.get(reference, (seconds, now))
    best = min(seconds, best * (1 + FADING * (now - when)))
    _bests[reference] = best, now
    return best


def _seconds(reference: Run) -> float:
    """The shorter of two runs, as an interrupt is no change of speed."""
    return min(clock(reference), clock(reference))
