"""Timing: which of several callables is fastest, on a machine whose speed drifts.

Candidates are run in rounds, A B C then B A C then …, and compared within a round, so that what
slows the machine for a while slows all of them. Warm regime: what a sample reads was just read.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
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
    "quick": Effort(candidates=8, rounds=15, seconds=1.2),
    "normal": Effort(candidates=24, rounds=30, seconds=5.0),
    "exhaustive": Effort(candidates=1000, rounds=60, seconds=60.0),
}

SAMPLE_SECONDS = 3e-3  # a sample lasts at least this long, by repeating a short run
WARM_BELOW = 10e-3  # a longer run warms itself: its own first part is not what it spends its time on
HOPELESS = 3.0  # who is this far behind leaves at once; another program can only double a time
BEHIND = 1.25  # who is this far behind the leader's median with the best sample leaves it
DOUBT = 0.05  # chance that an equal candidate loses as often as it did, below which it leaves
JUDGED = 3  # rounds before anybody else leaves, and that a comparison needs
SETTLED = 7  # rounds that a winner runs even alone, for a median worth storing
HALVINGS = (3, 6, 12, 24)  # rounds after which the slower half leaves …
CLOSE = 1.02  # … but for those this close to the leader
GAIN = 1.01  # what a challenger must win by, in the median …
SHARE = 0.75  # … and the share of rounds that it must win


@dataclass(frozen=True)
class Entrant:
    """What runs in a race, the loops that make a sample of it, and the seconds of a run found when that was settled."""

    run: Run
    loops: int
    seconds: float

    def sample(self) -> float:
        """Seconds of one run, the mean over the loops, on data just read."""
        if self.seconds < WARM_BELOW:
            self.run()
        return _clock(self.run, self.loops)


@dataclass
class Race:
    """The outcome: seconds of every sample by name, and who was still running at the end, fastest first."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    standing: list[str] = field(default_factory=list)
    rounds: int = 0

    @property
    def winner(self) -> str:
        return self.standing[0]

    def ratios(self, name: str, to: str) -> list[float]:
        """Time of one over the other's in each round that both ran in."""
        return [a / b for a, b in zip(self.samples[name], self.samples[to], strict=False)]

    def relative(self, name: str) -> float:
        """Time over the winner's, in the rounds that both ran in, so that drift cancels."""
        return statistics.median(self.ratios(name, self.winner))


def median_and_spread(samples: list[float]) -> tuple[float, float]:
    """The median and the median distance from it, in seconds."""
    middle = statistics.median(samples)
    return middle, statistics.median(abs(sample - middle) for sample in samples)


def calibrate(run: Run) -> Entrant:
    """Find the loops, at least one, that make a sample of SAMPLE_SECONDS."""
    with quiet():
        run()  # the first may still load what is compiled
        loops, seconds = 1, _clock(run, 1)
        while loops * seconds < SAMPLE_SECONDS:
            loops = min(math.ceil(1.1 * SAMPLE_SECONDS / seconds), 10 * loops)
            seconds = _clock(run, loops)
    return Entrant(run, loops, seconds)


def race(
    entrants: Mapping[str, Entrant],
    *,
    rounds: int,
    seconds: float,
    rng: random.Random,
    least: int = 1,
    drop: bool = True,
) -> Race:
    """Run all in interleaved rounds until one is left, or rounds or seconds are used up.

    Arguments:
        entrants: by name; at least one.
        seconds: a limit, except that `least` rounds are run in any case; with no round at all
            the calibration stands in for the samples.
        drop: whether losers leave early.
    """
    deadline = time.perf_counter() + seconds
    result = Race({name: [] for name in entrants}, list(entrants))
    with quiet():
        while result.rounds < rounds and (not drop or len(result.standing) > 1 or result.rounds < SETTLED):
            cost = sum(entrants[name].loops * entrants[name].seconds for name in result.standing)
            if result.rounds >= least and time.perf_counter() + cost > deadline:
                break
            for name in rng.sample(result.standing, len(result.standing)):
                result.samples[name].append(entrants[name].sample())
            result.rounds += 1
            if drop:
                result.standing = _judge(result)
    if not result.rounds:
        result.samples = {name: [entrant.seconds] for name, entrant in entrants.items()}
    result.standing.sort(key=lambda name: statistics.median(result.samples[name]))
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


def _judge(result: Race) -> list[str]:
    """Who stays after a round, fastest first."""
    ranked = sorted(result.standing, key=lambda name: statistics.median(result.samples[name]))
    leader = ranked[0]
    if result.rounds < JUDGED:
        return [name for name in ranked if statistics.median(result.ratios(name, leader)) <= HOPELESS]
    level = statistics.median(result.samples[leader])
    stay = [leader]
    for name in ranked[1:]:
        ratios = result.ratios(name, leader)
        lost = sum(ratio > 1.0 for ratio in ratios)
        if min(result.samples[name]) <= BEHIND * level and sign_test(lost, len(ratios)) > DOUBT:
            stay.append(name)
    if result.rounds in HALVINGS:
        half = math.ceil(len(ranked) / 2)
        near = {name for name in stay if statistics.median(result.ratios(name, leader)) <= CLOSE}
        stay = [name for at, name in enumerate(stay) if at < half or name in near]
    return stay
