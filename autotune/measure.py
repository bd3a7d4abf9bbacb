"""Timing: which of several callables is fastest, on a machine whose speed drifts.

Candidates are run in rounds, A B C then B A C then …, and compared within a round, so that what slows the machine for
a while slows all of them. Work of known length is timed before and after a round: where that moved, the machine's speed
changed under the round, which is thrown away; so is a round below the machine's best. A sample is the lower quartile of
several short parts, as what others do to the machine slows some of them and never makes one faster. What it reads was
just read, but for cold weights.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat

Run = Callable[[], None]


@dataclass(frozen=True)
class Effort:
    """How much to spend on a problem: candidates timed, rounds of the race, seconds of timing in all."""

    candidates: int
    rounds: int
    seconds: float


EFFORTS: dict[str, Effort] = {
    "quick": Effort(candidates=8, rounds=30, seconds=1.2),
    "normal": Effort(candidates=24, rounds=60, seconds=5.0),
    "exhaustive": Effort(candidates=1000, rounds=120, seconds=60.0),
}

SAMPLE_SECONDS = 1e-3  # a sample lasts at least this long, by repeating a short run; less than a scheduler's slice
PARTS = (6, 20)  # of a sample, each one run or, of runs too short for the clock, several …
LONG = 30e-3  # … but a sample of several parts lasts no longer than this
WARM_BELOW = 10e-3  # a longer run warms itself: its own first part is not what it spends its time on
HOPELESS = 3.0  # who is this far behind leaves at once; another program can only double a time
BEHIND = 1.25  # who is this far behind the leader's median with the best sample leaves it
DOUBT = 0.005  # chance that an equal candidate loses as often as it did, below which it leaves
JUDGED = 3  # rounds before anybody else leaves, and that a comparison needs
SETTLED = 7  # rounds that a winner runs even alone, for a median worth storing
HALVINGS = {3: 1.10, 6: 1.06, 12: 1.04, 24: 1.03}  # rounds after which the slower half leaves, but who is so close
GAIN = 1.01  # what a challenger must win by, in the median …
SHARE = 0.6  # … and the share of rounds that it must win
SAME = 0.01  # a lead that is known to be smaller is none, and nobody is timed to gain no more
CONFIDENCE = 0.95  # of the interval that a lead is known to lie in
MOVED = 0.02  # a round is thrown away if the reference changes by more meanwhile …
BELOW = 0.05  # … or is so much slower than it lately was at its best …
FADING = 1.0005  # … where the best fades so much a round, as a warm machine may never again be as fast as a cold one …
SPARE = 2  # … but no more rounds than are kept and this many: on a machine that never rests the best of them count


@dataclass(frozen=True)
class Entrant:
    """What runs in a race, the parts of a sample of it, the runs that make a part, the seconds of a run found when that
    was settled, and the least seconds that a run can take."""

    run: Run
    parts: int
    loops: int
    seconds: float
    bound: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds that a sample takes."""
        return self.parts * self.loops * self.seconds

    def sample(self) -> float:
        """Seconds of one run: the lower quartile of the parts, on data just read."""
        give_way()
        if self.seconds < WARM_BELOW:
            self.run()
        return sorted(_clock(self.run, self.loops) for _ in range(self.parts))[self.parts // 4]


@dataclass
class Race:
    """The outcome: each round's seconds by name, and who was still running at the end, fastest first.

    calibration: stands in where there was no round.  thrown: rounds that do not count, with how far the reference
    moved.
    """

    standing: list[str]
    calibration: dict[str, float] = field(default_factory=dict)
    kept: list[dict[str, float]] = field(default_factory=list)
    thrown: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return len(self.kept)

    @property
    def counted(self) -> list[dict[str, float]]:
        return self.kept or [self.calibration]

    @property
    def winner(self) -> str:
        return self.standing[0]

    @property
    def samples(self) -> dict[str, list[float]]:
        """Seconds of every sample by name."""
        found: dict[str, list[float]] = {}
        for each in self.counted:
            for name, seconds in each.items():
                found.setdefault(name, []).append(seconds)
        return found

    def median(self, name: str) -> float:
        return statistics.median(each[name] for each in self.counted if name in each)

    def ratios(self, name: str, to: str) -> list[float]:
        """Time of one over the other's in each round that both ran in."""
        return [each[name] / each[to] for each in self.counted if name in each and to in each]

    def relative(self, name: str) -> float:
        """Time over the winner's, in the rounds that both ran in, so that drift cancels. Who left early has lost to
        another, and is no faster for rounds that were the winner's worst."""
        found = statistics.median(self.ratios(name, self.winner))
        return found if name in self.standing else max(found, 1 + SAME)

    def keep_least_moved(self) -> None:
        """Let the round count after all that the reference moved least in."""
        least = min(self.thrown, key=lambda each: each[0])
        self.thrown.remove(least)
        self.kept.append(least[1])


def give_way() -> None:
    """Let other programs have the core now rather than in the middle of a sample."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def median_and_spread(samples: list[float]) -> tuple[float, float]:
    """The median and the median distance from it, in seconds."""
    middle = statistics.median(samples)
    return middle, statistics.median(abs(sample - middle) for sample in samples)


def calibrate(run: Run, bound: float = 0.0) -> Entrant:
    """Find the parts, and the runs in each, that make a sample; `bound` is the least seconds of a run."""
    few, many = PARTS

    def least(loops: int) -> float:
        seconds = _clock(run, loops)
        return min(seconds, _clock(run, loops)) if seconds < LONG else seconds

    with quiet():
        run()  # the first may still load what is compiled
        loops, seconds = 1, least(1)
        while loops * seconds < SAMPLE_SECONDS / many:
            loops = min(math.ceil(1.1 * SAMPLE_SECONDS / many / seconds), 10 * loops)
            seconds = least(loops)
    parts = max(few, math.ceil(SAMPLE_SECONDS / (loops * seconds)))
    return Entrant(run, max(1, min(parts, round(LONG / seconds))), loops, seconds, bound)


def race(
    entrants: Mapping[str, Entrant],
    *,
    rounds: int,
    seconds: float,
    rng: random.Random,
    least: int = 1,
    drop: bool = True,
    reference: Run | None = None,
) -> Race:
    """Run all in interleaved rounds until it is decided who is fastest, or rounds or seconds are used up.

    Arguments:
        entrants: by name; at least one.
        seconds: a limit, except that `least` rounds are run in any case; with no round at all
            the calibration stands in for the samples.
        drop: whether losers leave early, and the race ends when the rest are the same.
        reference: work of known length, some 50 µs, that tells whether the machine's speed changed.
    """
    deadline = time.perf_counter() + seconds
    result = Race(list(entrants), {name: entrant.seconds for name, entrant in entrants.items()})
    with quiet():
        while result.rounds < rounds and not (drop and _is_decided(result)):
            cost = sum(entrants[name].cost for name in result.standing)
            if result.rounds + len(result.thrown) >= least and time.perf_counter() + cost > deadline:
                break
            before = _pace(reference)
            each = {name: entrants[name].sample() for name in rng.sample(result.standing, len(result.standing))}
            after = _pace(reference)
            moved, below = abs(after / before - 1.0), _below_best(reference, before, after)
            result.thrown.append((moved + below, each))
            if (moved <= MOVED and below <= BELOW) or len(result.thrown) > result.rounds + SPARE:
                result.keep_least_moved()
                if drop:
                    result.standing = _judge(result, entrants)
    while result.thrown and result.rounds < min(rounds, max(least, JUDGED)):
        result.keep_least_moved()
    result.standing.sort(key=result.median)
    return result


def is_faster(challenger: list[float], holder: list[float]) -> bool:
    """Whether enough paired samples show the challenger faster, by more than noise."""
    if len(challenger) < JUDGED:
        return False
    ratios = [b / a for a, b in zip(challenger, holder, strict=True)]
    won = sum(ratio > 1.0 for ratio in ratios)
    return statistics.median(ratios) >= GAIN and won >= SHARE * len(ratios)


def sign_test(won: int, of: int) -> float:
    """Chance of at least `won` heads in `of` throws of a fair coin."""
    return sum(math.comb(of, k) for k in range(won, of + 1)) / 2**of


def interval(ratios: list[float]) -> tuple[float, float]:
    """Where the median of the ratios' distribution lies with CONFIDENCE, whatever the distribution; everywhere if the
    ratios are too few to tell. By order statistics, from the sign test."""
    of = len(ratios)
    cut = max((k for k in range(of // 2 + 1) if 2 * (1 - sign_test(k, of)) <= 1 - CONFIDENCE), default=0)
    if not cut:
        return -math.inf, math.inf
    ordered = sorted(ratios)
    return ordered[cut - 1], ordered[of - cut]


def _clock(run: Run, loops: int) -> float:
    start = time.perf_counter_ns()
    for _ in repeat(None, loops):
        run()
    return max(time.perf_counter_ns() - start, 1) * 1e-9 / loops


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _pace(reference: Run | None) -> float:
    """Seconds of the reference: the shorter of two runs, as an interrupt is no change of speed."""
    return 1.0 if reference is None else min(_clock(reference, 1), _clock(reference, 1))


_best_paces: weakref.WeakKeyDictionary[Run, float] = weakref.WeakKeyDictionary()


def _below_best(reference: Run | None, *paces: float) -> float:
    """How much slower than at its best, of late and in any race, the reference was at its slowest."""
    if reference is None:
        return 0.0
    best = min(*paces, FADING * _best_paces.get(reference, math.inf))
    _best_paces[reference] = best
    return max(paces) / best - 1.0


def _is_decided(result: Race) -> bool:
    """Whether one is left, or those left are known to be the same, and the winner has run enough to be stored."""
    if result.rounds < SETTLED:
        return False
    leader, *others = result.standing
    intervals = [interval(result.ratios(name, leader)) for name in others]
    return all(low >= 1 - SAME and high <= 1 + SAME for low, high in intervals)


def _judge(result: Race, entrants: Mapping[str, Entrant]) -> list[str]:
    """Who stays after a round, fastest first."""
    ranked = sorted(result.standing, key=result.median)
    leader = ranked[0]
    relative = {name: statistics.median(result.ratios(name, leader)) for name in ranked}
    if result.rounds < JUDGED:
        return [name for name in ranked if relative[name] <= HOPELESS]
    level = result.median(leader)
    stay = [leader]
    for name in ranked[1:]:
        ratios = result.ratios(name, leader)
        lost = sum(ratio > 1.0 for ratio in ratios)
        best = min(each[name] for each in result.kept if name in each)
        can_win = level > (1 + SAME) * entrants[name].bound
        if can_win and best <= BEHIND * level and sign_test(lost, len(ratios)) > DOUBT:
            stay.append(name)
    if result.rounds in HALVINGS:
        half = math.ceil(len(ranked) / 2)
        stay = [name for at, name in enumerate(stay) if at < half or relative[name] <= HALVINGS[result.rounds]]
    return stay
