"""Timing: which of several callables is fastest, on a machine whose speed drifts.

Candidates are run in rounds, A B C then B A C then …, and compared within a round, so that what slows the machine for
a while slows all of them. Work of known length is timed before and after each sample, which is taken again where the
machine was below its best (`timing.pace`); where that cannot be had, a round in which the machine's speed changed is
thrown away. A sample is the least of several parts, as what others do to the machine slows some of them and never makes
one faster. What it reads was just read, but for cold weights.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.timing.pace import Pace, Run, Wake, clock
from autotune.timing.stack import displaced


@dataclass(frozen=True)
class Effort:
    """How much to spend on a problem: candidates timed, rounds of a race, candidates timed again (and the model's
    choice), seconds in all but for compiling."""

    candidates: int
    rounds: int
    finalists: int
    seconds: float


EFFORTS: dict[str, Effort] = {
    "quick": Effort(candidates=10, rounds=30, finalists=4, seconds=1.22),
    "normal": Effort(candidates=24, rounds=60, finalists=8, seconds=5.2),
    "exhaustive": Effort(candidates=1000, rounds=120, finalists=12, seconds=60.0),
}

PART_SECONDS = 5e-5  # a part of a sample lasts at least this long, by repeating a short run: long for a clock
PARTS = 9  # of a sample, as caches need several runs to settle …
LONG = 12e-3  # … but it lasts no longer than this, if a run does not
HOPELESS = 3.0  # who is this far behind, and was when its sample was settled, leaves at once
BEHIND = 1.25  # who is this far behind the leader's median with the best sample leaves it
DOUBT = 0.005  # chance that an equal candidate loses as often as it did, below which it leaves
JUDGED = 3  # rounds that a comparison needs, and before anybody else leaves …
SURE = 6  # … or so many, where they are short: …
BRIEF = 20e-3  # … take no longer than this
SETTLED = 7  # rounds that a winner runs even alone, for a median worth storing, and that are not given up for waiting
HALVINGS = {3: 1.10, 6: 1.06, 12: 1.04, 24: 1.03}  # rounds after which the slower half leaves, but who is so close …
NOISE = 3.0  # … or may be, by so many spreads of the ratios over the root of their number, …
LOST = 0.75  # … or has lost fewer rounds to the leader than this share
GAIN = 1.015  # what a challenger must win by, and by more than this many spreads over that root …
BEYOND = 2.5  # … as an equal one does in one of fifteen cases …
CHANCE = 0.2  # … and the chance, at most, that an equal one wins as many rounds
SAME = 0.01  # nobody is timed to gain no more
CONFIDENCE = 0.95  # of the interval that a ratio is known to lie in
MOVED = 0.02  # a round is thrown away if the reference changes by more meanwhile, and more than it always does …
SPARE = 2  # … but no more rounds than are kept and this many: on a machine that never rests the best of them count


def stay() -> None:
    """Move no data."""


@dataclass(frozen=True)
class Entrant:
    """What runs in a race, the parts of a sample of it, the runs that make a part, the seconds of a run found when that
    was settled, the least seconds that a run can take, what moves its data before a sample, and how the reference fared
    after each."""

    run: Run
    parts: int
    loops: int
    seconds: float
    bound: float = 0.0
    move: Run = stay
    wake: Wake = field(default_factory=Wake)

    @property
    def cost(self) -> float:
        """Seconds that a sample takes."""
        return self.parts * self.loops * self.seconds

    def sample(self, pace: Pace) -> float:
        """Seconds of one run, on data and a stack in other places than before, with the data just read, at the
        machine's best if it can be had: the least of the parts, as others slow some of them, and what nearly fills a
        cache is settled there after several."""
        self.move()
        give_way()
        while True:
            pace.wait()
            parts = displaced(lambda: [clock(self.run, self.loops) for _ in range(self.parts)])
            if pace.counts(sum(parts) * self.loops, self.wake):
                return min(parts)


@dataclass(frozen=True)
class Round:
    """Seconds by name.  moved: by what share the reference changed meanwhile.  full: whether all samples were taken at
    the machine's best."""

    seconds: dict[str, float]
    moved: float = 0.0
    full: bool = True


@dataclass
class Race:
    """The outcome: the rounds, and who was still running at the end, fastest first.

    calibration: seconds by name, that stand in where there was no round.  thrown: rounds that do not count.
    """

    standing: list[str]
    calibration: dict[str, float] = field(default_factory=dict)
    kept: list[Round] = field(default_factory=list)
    thrown: list[Round] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return len(self.kept)

    @property
    def full(self) -> int:
        """Rounds at the machine's best."""
        return sum(each.full for each in self.kept)

    @property
    def seconds(self) -> list[dict[str, float]]:
        return [each.seconds for each in self.kept] or [self.calibration]

    @property
    def winner(self) -> str:
        return self.standing[0]

    @property
    def samples(self) -> dict[str, list[float]]:
        """Seconds of every sample by name."""
        found: dict[str, list[float]] = {}
        for each in self.seconds:
            for name, seconds in each.items():
                found.setdefault(name, []).append(seconds)
        return found

    def median(self, name: str) -> float:
        return statistics.median(each[name] for each in self.seconds if name in each)

    def ratios(self, name: str, to: str) -> list[float]:
        """Time of one over the other's in each round that both ran in."""
        return [each[name] / each[to] for each in self.seconds if name in each and to in each]

    def lost(self, name: str, to: str) -> float:
        """Share of the rounds that both ran in."""
        return statistics.fmean(ratio > 1.0 for ratio in self.ratios(name, to))

    def relative(self, name: str) -> float:
        """Time over the winner's, in the rounds that both ran in, so that drift cancels. Who left early has lost to
        another, and is no faster for rounds that were the winner's worst."""
        found = statistics.median(self.ratios(name, self.winner))
        return found if name in self.standing else max(found, 1 + SAME)

    def keep_least_moved(self) -> None:
        """Let the round count after all that the reference moved least in."""
        least = min(self.thrown, key=lambda each: each.moved)
        self.thrown.remove(least)
        self.kept.append(least)


def give_way() -> None:
    """Let other programs have the core now rather than in the middle of a sample."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def median_and_spread(samples: list[float]) -> tuple[float, float]:
    """The median and the median distance from it, in seconds."""
    middle = statistics.median(samples)
    return middle, statistics.median(abs(sample - middle) for sample in samples)


def pseudomedian(values: Sequence[float]) -> float:
    """The median of the means of all pairs (Hodges and Lehmann, "Estimates of Location Based on Rank Tests", 1963):
    nearer to the middle of a distribution than the median of as many values, and outliers shift it as little."""
    found = np.asarray(values)
    first, second = np.triu_indices(len(found))
    return float(np.median((found[first] + found[second]) / 2))


def calibrate(run: Run, bound: float = 0.0, move: Run = stay) -> Entrant:
    """Find the parts, and the runs in each, that make a sample.

    Arguments:
        bound: the least seconds of a run.  move: called before each sample, puts the data elsewhere in memory.
    """

    def least(loops: int) -> float:
        seconds = clock(run, loops)
        return min(seconds, clock(run, loops)) if seconds < LONG else seconds

    with quiet():
        move()
        run()  # the first may still load what is compiled
        loops, seconds = 1, least(1)
        while loops * seconds < PART_SECONDS:
            loops = min(math.ceil(1.1 * PART_SECONDS / seconds), 10 * loops)
            seconds = least(loops)
    return Entrant(run, max(1, min(PARTS, round(LONG / seconds))), loops, seconds, bound, move)


def race(
    entrants: Mapping[str, Entrant],
    *,
    rounds: int,
    seconds: float,
    rng: random.Random,
    least: int = 1,
    drop: bool = True,
    reference: Run | None = None,
    roam: bool = False,
    patience: float = 0.0,
) -> Race:
    """Run all in interleaved rounds until it is decided who is fastest, or rounds or seconds are used up.

    Arguments:
        entrants: by name; at least one.
        seconds: a limit, except that `least` rounds are run in any case; with no round at all
            the calibration stands in for the samples.
        drop: whether losers leave early, and the race ends when it is settled.
        reference: work of known length, some 50 µs, that tells how fast the machine is.
        roam: whether to move between cores while the machine's best is waited for: not with threads of their own.
        patience: seconds beyond that limit, for as long as SETTLED rounds at the machine's best are not there, but can
            be expected, or rounds are too few to tell anything.
    """
    deadline = time.perf_counter() + seconds
    result = Race(list(entrants), {name: entrant.seconds for name, entrant in entrants.items()})
    with quiet():
        pace = Pace(reference, roam=roam)
        while result.rounds < rounds and not (drop and is_settled(result)):
            cost = sum(entrants[name].cost for name in result.standing)
            lacking, now = SETTLED - result.full, time.perf_counter()
            needed, run = cost * max(1, lacking), result.rounds + len(result.thrown)
            is_worth = lacking > 0 and pace.share >= needed / max(cost, deadline + patience - now)
            end = deadline + patience if is_worth or run < _tellable(cost) else deadline
            if run >= least and now + cost > end:
                break
            pace.begin_round(until=end - needed, share=needed / max(cost, end - now))
            each = {name: entrants[name].sample(pace) for name in rng.sample(result.standing, len(result.standing))}
            result.thrown.append(Round(each, pace.moved, pace.full))
            if pace.moved <= max(MOVED, pace.drift) or len(result.thrown) > result.rounds + SPARE:
                result.keep_least_moved()
                if drop:
                    result.standing = _judge(result, entrants)
    while result.thrown and result.rounds < min(rounds, max(least, SETTLED)):
        result.keep_least_moved()
    result.standing.sort(key=result.median)
    return result


def is_faster(ratios: list[float]) -> bool:
    """Whether one is faster by more than noise: by the other's time over its own, in rounds that both ran in."""
    if len(ratios) < JUDGED:
        return False
    won = sum(ratio > 1.0 for ratio in ratios)
    beyond = max(GAIN, 1 + _noise(ratios, BEYOND))
    return pseudomedian(ratios) >= beyond and sign_test(won, len(ratios)) <= CHANCE


def is_settled(result: Race) -> bool:
    """Whether more rounds would gain nothing: nobody is faster than the leader but for nothing worth having."""
    if result.rounds < SETTLED:
        return False
    leader, *others = sorted(result.standing, key=result.median)
    return all(interval(result.ratios(name, leader))[0] >= 1 - SAME for name in others)


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


def _judge(result: Race, entrants: Mapping[str, Entrant]) -> list[str]:
    """Who stays after a round, fastest first."""
    ranked = sorted(result.standing, key=result.median)
    leader = ranked[0]
    ratios = {name: result.ratios(name, leader) for name in ranked}
    relative = {name: statistics.median(found) for name, found in ratios.items()}
    level = result.median(leader)
    if result.rounds < _tellable(sum(entrants[name].cost for name in ranked)):
        return [name for name in ranked if min(relative[name], entrants[name].seconds / level) <= HOPELESS]
    stay = [leader]
    for name in ranked[1:]:
        best = min(each[name] for each in result.seconds if name in each)
        can_win = level > (1 + SAME) * entrants[name].bound
        lost = sum(ratio > 1.0 for ratio in ratios[name])
        if can_win and best <= BEHIND * level and sign_test(lost, len(ratios[name])) > DOUBT:
            stay.append(name)
    if (close := HALVINGS.get(result.rounds)) is not None:
        stay = [
            name
            for at, name in enumerate(stay)
            if at < math.ceil(len(ranked) / 2)
            or relative[name] <= close * (1 + _noise(ratios[name]))
            or result.lost(name, leader) < LOST
        ]
    return stay


def _tellable(cost: float) -> int:
    """Rounds that tell who is slower, of those that take so many seconds."""
    return SURE if cost <= BRIEF else JUDGED


def _noise(ratios: list[float], spreads: float = NOISE) -> float:
    """By what share their middle may be off."""
    middle, spread = median_and_spread(ratios)
    return spreads * spread / middle / math.sqrt(len(ratios))
