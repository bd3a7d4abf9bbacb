"""Timing: which of several callables is fastest, on a machine whose speed drifts.

Candidates are run in rounds, A B C then B A C then …, and compared within a round, so that what slows the machine for
a while slows all of them. A loop of known length is timed before and after a round: where it moved, the machine's
speed changed under the round, which is thrown away. What a sample reads was just read, but for cold weights.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Run = Callable[[], None]


@dataclass(frozen=True)
class Effort:
    """How much to spend on a problem: candidates timed, rounds of the race, seconds of timing in all."""

    candidates: int
    rounds: int
    seconds: float


EFFORTS: dict[str, Effort] = {
    "quick": Effort(candidates=8, rounds=15, seconds=1.2),
    "normal": Effort(candidates=24, rounds=30, seconds=5.0),
    "exhaustive": Effort(candidates=1000, rounds=60, seconds=60.0),
}

SAMPLE_SECONDS = 1e-3  # a sample lasts at least this long, by repeating a short run; less than a scheduler's slice
WARM_BELOW = 10e-3  # a longer run warms itself: its own first part is not what it spends its time on
RETAKES = 3  # of a sample that another program disturbed …
LONG = 20e-3  # … unless it lasts so long that any will be
HOPELESS = 3.0  # who is this far behind leaves at once; another program can only double a time
BEHIND = 1.25  # who is this far behind the leader's median with the best sample leaves it
DOUBT = 0.05  # chance that an equal candidate loses as often as it did, below which it leaves
JUDGED = 3  # rounds before anybody else leaves, and that a comparison needs
SETTLED = 7  # rounds that a winner runs even alone, for a median worth storing
HALVINGS = (3, 6, 12, 24)  # rounds after which the slower half leaves …
CLOSE = 1.02  # … but for those this close to the leader
GAIN = 1.01  # what a challenger must win by, in the median …
SHARE = 0.75  # … and the share of rounds that it must win
SAME = 0.01  # a lead that is known to be smaller is none, and nobody is timed to gain no more
CONFIDENCE = 0.95  # of the interval that a lead is known to lie in
MOVED = 0.02  # a round is thrown away if the reference changes by more meanwhile …
SPARE = 2  # … but no more rounds than are kept and this many: on a machine that never rests the best of them count


@dataclass(frozen=True)
class Entrant:
    """What runs in a race, the loops that make a sample of it, the seconds of a run found when that was settled, and
    the least seconds that a run can take."""

    run: Run
    loops: int
    seconds: float
    bound: float = 0.0

    def sample(self) -> float:
        """Seconds of one run, the mean over the loops, on data just read."""
        return _undisturbed(self.run, self.loops, warm=self.seconds < WARM_BELOW)


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
    halvings: int = 0

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
        """Time over the winner's, in the rounds that both ran in, so that drift cancels."""
        return statistics.median(self.ratios(name, self.winner))

    def keep_least_moved(self) -> None:
        """Let the round count after all that the reference moved least in."""
        least = min(self.thrown, key=lambda each: each[0])
        self.thrown.remove(least)
        self.kept.append(least[1])


def preemptions() -> int:
    """How often the system has taken a core from this process for another; 0 where it does not tell."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource is not None else 0


def give_way() -> None:
    """Let other programs have the core now rather than in the middle of a sample."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def median_and_spread(samples: list[float]) -> tuple[float, float]:
    """The median and the median distance from it, in seconds."""
    middle = statistics.median(samples)
    return middle, statistics.median(abs(sample - middle) for sample in samples)


def calibrate(run: Run, bound: float = 0.0) -> Entrant:
    """Find the loops, at least one, that make a sample of SAMPLE_SECONDS; `bound` is the least seconds of a run."""
    with quiet():
        run()  # the first may still load what is compiled
        loops, seconds = 1, _undisturbed(run, 1)
        while loops * seconds < SAMPLE_SECONDS:
            loops = min(math.ceil(1.1 * SAMPLE_SECONDS / seconds), 10 * loops)
            seconds = _undisturbed(run, loops)
    return Entrant(run, loops, seconds, bound)


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
        reference: a loop of known length, some 50 µs, that tells whether the machine's speed changed.
    """
    deadline = time.perf_counter() + seconds
    result = Race(list(entrants), {name: entrant.seconds for name, entrant in entrants.items()})
    with quiet():
        while result.rounds < rounds and not (drop and _is_decided(result)):
            cost = sum(entrants[name].loops * entrants[name].seconds for name in result.standing)
            if result.rounds + len(result.thrown) >= least and time.perf_counter() + cost > deadline:
                break
            before = _pace(reference)
            each = {name: entrants[name].sample() for name in rng.sample(result.standing, len(result.standing))}
            moved = abs(_pace(reference) / before - 1.0)
            result.thrown.append((moved, each))
            if moved <= MOVED or len(result.thrown) > result.rounds + SPARE:
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


def _undisturbed(run: Run, loops: int, warm: bool = False) -> float:
    """As `_clock`, from the start of a slice of the scheduler's; again where another program came in between a short
    run, of which the shortest counts."""
    best = math.inf
    for _ in range(1 + RETAKES):
        give_way()
        if warm:
            run()
        before = preemptions()
        best = min(best, _clock(run, loops))
        if preemptions() == before or best * loops > LONG:
            break
    return best


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
    if result.halvings < sum(result.rounds >= rounds for rounds in HALVINGS):
        result.halvings += 1
        half = math.ceil(len(ranked) / 2)
        stay = [name for at, name in enumerate(stay) if at < half or relative[name] <= CLOSE]
    return stay
