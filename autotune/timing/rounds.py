"""Rounds: several callables timed one after another, in random order, again and again.

They are compared within rounds, so that what slows the machine for a while slows all of them. Beside each round stands
what the speed probe, work of known length, took around it: the machine's speed then.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from autotune.timing.compare import EQUAL, MIN_ROUNDS, Ratio, compare
from autotune.timing.sample import Entrant, Run, clock, quiet

VISIT_ROUNDS = 32  # of one visit: they then cost as much as getting ready does for short candidates
COUNTED = 7  # rounds in the faster half that are enough without the slower half: one more than Wilcoxon's test needs


class Round(NamedTuple):
    """What one round took.

    Attributes
    ----------
    visit : int
        Its number; the rounds of a visit share prepared data and the moment.
    seconds : mapping of str to float
        Of a run, by the name of what ran.
    probe : float
        Seconds of the speed probe; 0 if there is none.
    """

    visit: int
    seconds: Mapping[str, float]
    probe: float = 0.0


class Rounds:
    """All rounds of a problem."""

    def __init__(self, rounds: Sequence[Round] = ()) -> None:
        self.all = list(rounds)
        self._known: dict[tuple[str, str], Ratio] = {}

    def add(self, new: Round) -> None:
        """One more."""
        self.all.append(new)
        self._known.clear()

    def of(self, *names: str) -> list[Round]:
        """The rounds that count of those in which all of them ran: those whose probe is in the faster half, if these
        are enough."""
        shared = [each for each in self.all if all(name in each.seconds for name in names)]
        limit = statistics.median(each.probe for each in shared) if shared else 0.0
        fast = [each for each in shared if each.probe <= limit]
        return fast if len(fast) >= COUNTED else shared

    def compare(self, name: str, to: str) -> Ratio:
        """The time of one over the other's."""
        if name == to:
            return EQUAL
        if (name, to) not in self._known:
            self._known[name, to] = compare([each.seconds[name] / each.seconds[to] for each in self.of(name, to)])
        return self._known[name, to]

    def by_visit(self, name: str, to: str) -> list[Ratio]:
        """The time of one over the other's in each visit in which both ran."""
        shared = [each for each in self.all if name in each.seconds and to in each.seconds]
        visits = {each.visit: Rounds([other for other in shared if other.visit == each.visit]) for each in shared}
        return [rounds.compare(name, to) for rounds in visits.values()]

    def fastest(self, names: Sequence[str]) -> str:
        """The fastest of some that ran together."""
        return min(names, key=lambda name: self.compare(name, names[0]).centre)

    def samples(self, name: str) -> list[float]:
        """Seconds of every sample."""
        return [each.seconds[name] for each in self.all if name in each.seconds]

    def median(self, name: str) -> float:
        """Seconds of a run, in the rounds that count."""
        return statistics.median(each.seconds[name] for each in self.of(name))


def run_rounds(
    rounds: Rounds,
    entrants: Mapping[str, Entrant],
    *,
    rng: random.Random,
    probe: Run | None = None,
    visit: int = 1,
    most: int = VISIT_ROUNDS,
    seconds: float = math.inf,
    least: int = MIN_ROUNDS,
    judge: Callable[[list[str]], list[str]] = lambda standing: standing,
) -> None:
    """Add rounds of these entrants.

    Parameters
    ----------
    rounds
        What is known so far; added to.
    entrants
        By name; at least one.
    probe
        The speed probe, work of some 50 µs.
    visit
        The number of this visit.
    most, seconds, least
        Rounds and seconds at most; but `least` rounds in any case.
    judge
        Told who ran, after each round from the `least`-th on; returns who runs on, none to end.
    """
    standing, cost = list(entrants), 0.0
    end = time.perf_counter() + seconds
    with quiet():
        before = _look(probe)
        for number in range(1, most + 1):
            begun = time.perf_counter()
            if number > least and begun + cost > end:
                break
            taken = {name: entrants[name].sample() for name in rng.sample(standing, len(standing))}
            after = _look(probe)
            rounds.add(Round(visit, taken, (before + after) / 2))
            before = after
            cost = time.perf_counter() - begun
            if number >= least and not (standing := judge(standing)):
                break


def _look(probe: Run | None) -> float:
    """Seconds of the probe: the shorter of two runs, as the first finds the caches full of other data."""
    return 0.0 if probe is None else min(clock(probe), clock(probe))
