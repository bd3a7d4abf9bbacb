"""Rounds: several callables timed in turn, in random order, repeatedly.

Callables are compared within rounds, so a slow phase of the machine affects all of them. Each round also has the time
of the speed probe, a fixed amount of work, before and after it: the machine's speed at that time.
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

VISIT_ROUNDS = 32  # max. rounds of a visit: for short candidates, they cost as much as the preparation
COUNTED = 7  # min. rounds in the faster half to ignore the slower half: one more than Wilcoxon's test needs


class Round(NamedTuple):
    """The times of one round.

    Attributes
    ----------
    visit : int
        Number of the visit; rounds of a visit share prepared data and are close in time.
    seconds : mapping of str to float
        Time of one run, by candidate.
    probe : float
        Time of the speed probe, in seconds; 0 without a probe.
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
        """Add a round."""
        self.all.append(new)
        self._known.clear()

    def of(self, *names: str) -> list[Round]:
        """Return the rounds that contain all of `names`; if they are enough, only those in the faster half of the
        probe's times."""
        shared = [each for each in self.all if all(name in each.seconds for name in names)]
        limit = statistics.median(each.probe for each in shared) if shared else 0.0
        fast = [each for each in shared if each.probe <= limit]
        return fast if len(fast) >= COUNTED else shared

    def compare(self, name: str, to: str) -> Ratio:
        """Return the ratio of the time of `name` to that of `to`."""
        if name == to:
            return EQUAL
        if (name, to) not in self._known:
            self._known[name, to] = compare([each.seconds[name] / each.seconds[to] for each in self.of(name, to)])
        return self._known[name, to]

    def by_visit(self, name: str, to: str) -> list[Ratio]:
        """Return the ratio of the time of `name` to that of `to`, per visit in which both ran."""
        shared = [each for each in self.all if name in each.seconds and to in each.seconds]
        visits = {each.visit: Rounds([other for other in shared if other.visit == each.visit]) for each in shared}
        return [rounds.compare(name, to) for rounds in visits.values()]

    def fastest(self, names: Sequence[str]) -> str:
        """Return the fastest of callables that ran in the same rounds."""
        return min(names, key=lambda name: self.compare(name, names[0]).centre)

    def samples(self, name: str) -> list[float]:
        """Return the time of every sample, in seconds."""
        return [each.seconds[name] for each in self.all if name in each.seconds]

    def median(self, name: str) -> float:
        """Return the median time of a run in the relevant rounds, in seconds."""
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
    select: Callable[[list[str]], list[str]] = lambda remaining: remaining,
) -> None:
    """Run and add rounds of these entrants.

    Parameters
    ----------
    rounds
        Rounds so far; new ones are appended.
    entrants
        Entrants by name; at least one.
    probe
        The speed probe, about 50 µs of work.
    visit
        The number of this visit.
    most, seconds, least
        Limits of rounds and seconds; but at least `least` rounds.
    select
        Called with the names that ran, after each round from the `least`-th on. It returns the names for the next
        round; an empty list ends the visit.
    """
    remaining, cost = list(entrants), 0.0
    end = time.perf_counter() + seconds
    with quiet():
        before = _look(probe)
        for number in range(1, most + 1):
            begun = time.perf_counter()
            if number > least and begun + cost > end:
                break
            taken = {name: entrants[name].sample() for name in rng.sample(remaining, len(remaining))}
            after = _look(probe)
            rounds.add(Round(visit, taken, (before + after) / 2))
            before = after
            cost = time.perf_counter() - begun
            if number >= least and not (remaining := select(remaining)):
                break


def _look(probe: Run | None) -> float:
    """Return the probe's time in seconds: the shorter of two runs, as the first has cold caches."""
    return 0.0 if probe is None else min(clock(probe), clock(probe))
