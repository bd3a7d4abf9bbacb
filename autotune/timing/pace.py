"""How fast the machine is now against its best of late, and waiting until it is that fast again.

On a machine that others share, moments at full speed and moments well below it take turns, and who is fastest in one
kind is not in the other. Samples are taken at full speed, as that is what a quiet machine repeats, for as long as such
moments can be had at a fair price; where they are rare, at the speed that is usual there.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from autotune.machine.cores import move_thread

Run = Callable[[], None]

RARE = 0.1  # share of the time in which the reference is faster than what is called its best: the least may be luck
BELOW = 0.03  # the machine is at its best if the reference takes no longer than its best and this much …
USUAL = 0.75  # … but where it takes, for this share of the time, …
NEAR = 0.1  # … no longer than its best and this much, that: speeds so close drift, and waiting gains nothing
PATIENCE = 10.0  # seconds waited, at most, for a second of samples …
AT_ONCE = 0.2  # … and these before the first
PAUSE = 5e-4  # between two looks: moments at full speed last some 40 ms
FIRST_LOOKS = 200  # at a reference that is new, to learn its best
TRUST = 1.0  # seconds for which the machine is taken to have been as in these …
MEMORY = 20.0  # … and what was seen is forgotten after about so many seconds of looking
SPAN = 0.01  # seconds that a look speaks for, at most
FINE = 0.002  # steps in which the reference's times are told apart …
STEPS = 1000  # … and their number: from half of the first to four times as much


def clock(run: Run, loops: int = 1) -> float:
    """Seconds of one run, of so many in a row."""
    start = time.perf_counter_ns()
    for _ in repeat(None, loops):
        run()
    return max(time.perf_counter_ns() - start, 1) * 1e-9 / loops


@dataclass
class Wake:
    """What the reference took right after the same work, time and again, above its best: in FINE steps.

    A core that has just multiplied wide vectors or lost what its caches held is slower for a while, whatever others do:
    what is had now and then after that work is the best there.
    """

    seen: list[int] = field(default_factory=list)

    @property
    def usual(self) -> int:
        """The second least of up to ten, the third of twenty …, as the least may be luck."""
        return sorted(self.seen)[min(1 + int(RARE * len(self.seen)), len(self.seen) - 1)]


class Pace:
    """Looks at a reference, work of known length, before and after samples; without one all are taken as they come.

    lost: how much longer than its best the reference took at the last look.  full: whether all samples of the round
    were taken at the machine's best.
    """

    def __init__(self, reference: Run | None, *, roam: bool = False) -> None:
        """roam: whether to look on other cores too while waiting, as others may share one and leave another alone."""
        self._reference, self._roam, self._moves = reference, roam, 0
        self._history = None if reference is None else _histories.get(reference) or _History(reference)
        self._until = math.inf
        self._allowed = AT_ONCE
        self.lost = 0.0
        self._counted: list[float] = []  # lost, before and after each sample of the round that counted
        self.full = True
        self.look()

    @property
    def share(self) -> float:
        """Of the time of late, that the machine was at its best; 0 if nothing tells."""
        return 0.0 if self._history is None else self._history.share

    @property
    def drift(self) -> float:
        """By what share the reference changes all the time, where that is called its best: 0 where it keeps to it."""
        return 0.0 if self._history is None else self._history.drift

    def look(self, wake: Wake | None = None) -> None:
        """Time the reference.  wake: of the work that has just run; added to."""
        if self._reference is not None and self._history is not None:
            self.lost = self._history.look(self._reference, wake)

    def begin_round(self, until: float = math.inf, share: float = 0.0) -> None:
        """Nothing is waited for past `until`, of `time.perf_counter()`, nor where the machine is at its best for a
        smaller share of the time."""
        self._counted, self.full = [], True
        self._until = until if self.share >= share else -math.inf

    @property
    def moved(self) -> float:
        """By what share the reference changed in the samples of the round that counted."""
        return (1 + max(self._counted)) / (1 + min(self._counted)) - 1 if self._counted else 0.0

    def wait(self) -> None:
        """Until the machine is at its best, or patience is used up."""
        while self.is_below(self.lost) and self._is_patient():
            begun = time.perf_counter()
            time.sleep(PAUSE)
            if self._roam:
                self._moves += 1
                move_thread(self._moves)
            self.look()
            self._allowed -= time.perf_counter() - begun

    def counts(self, seconds: float, wake: Wake) -> bool:
        """Whether what ran for so long since the last look did so at the machine's best, or is to count all the same as
        that is not waited for. For `wake` see `look`."""
        before = self.lost
        self.look(wake)
        lost = max(before, self.lost)
        if self.is_below(lost) and self._is_patient():
            self._allowed -= seconds
            return False
        self._allowed += PATIENCE * seconds
        self._counted += max(0.0, before), max(0.0, self.lost)  # faster than the best is luck
        self.full = self.full and not self.is_below(lost)
        return True

    def is_below(self, lost: float) -> bool:
        """Whether a machine whose reference takes so much longer than its best is not at its best."""
        return self._history is not None and lost > self._history.below

    def _is_patient(self) -> bool:
        return self._history is not None and self._allowed > 0 and time.perf_counter() < self._until


class _History:
    """What was seen of a reference of late, in any race: a histogram of what it took, by the time each stood for."""

    def __init__(self, reference: Run) -> None:
        looks = [_seconds(reference)]
        for _ in range(FIRST_LOOKS):
            time.sleep(PAUSE)
            looks.append(_seconds(reference))
        self._least = min(looks) / 2
        self._weights = np.zeros(STEPS)
        for seconds in looks:
            self._weights[self._step(seconds)] += TRUST / len(looks)
        self._when = time.perf_counter()
        _histories[reference] = self

    def look(self, reference: Run, wake: Wake | None = None) -> float:
        """By what share the reference is now above its best; below 0 in the rare moments in which it is faster."""
        seconds, now = _seconds(reference), time.perf_counter()
        best = self._quantile(RARE)
        if wake is not None:
            wake.seen.append(self._step(seconds) - best)
            seconds /= math.exp(FINE * wake.usual)
        known = min(max(0.0, now - self._when), SPAN)
        self._when = now
        self._weights *= math.exp(-known / MEMORY)
        self._weights[self._step(seconds)] += known
        return math.exp(FINE * (self._step(seconds) - best)) - 1.0

    @property
    def share(self) -> float:
        """Of the time of late, that the machine was at its best."""
        last = self._quantile(RARE) + round(math.log1p(self.below) / FINE)
        return float(self._weights[: last + 1].sum() / self._weights.sum())

    @property
    def below(self) -> float:
        """How much longer than its best the reference takes at most where the machine still is at its best."""
        return self.drift or BELOW

    @property
    def drift(self) -> float:
        """How far above its best the reference usually is, where it never is far."""
        usual = math.exp(FINE * (self._quantile(USUAL) - self._quantile(RARE))) - 1.0
        return NEAR if BELOW < usual <= NEAR else 0.0

    def _quantile(self, share: float) -> int:
        """The step that the reference's time does not exceed for such a share of the time."""
        upto = self._weights.cumsum()
        return int(upto.searchsorted(share * upto[-1]))

    def _step(self, seconds: float) -> int:
        return min(max(0, round(math.log(seconds / self._least) / FINE)), STEPS - 1)


_histories: weakref.WeakKeyDictionary[Run, _History] = weakref.WeakKeyDictionary()


def _seconds(reference: Run) -> float:
    """The shorter of two runs, as an interrupt is no change of speed."""
    return min(clock(reference), clock(reference))
