"""Warmups that several parts ask for, each done once, and their winners timed against one another."""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress as Bar
from scipy.stats import t as student

from autotune.store.store import Row, Store
from autotune.timing.measure import CONFIDENCE, calibrate, interval, race
from autotune.tuning.candidates import timed_rows
from autotune.tuning.warmup import warmup
from autotune.workload import ADMITS, Problem
from cpuconv.tuning.workload import workload

SPEC = "cpuconv.tuning.workload:workload"
ACCURACY = "standard"
EXHAUSTIVE = "exhaustive"
UNCOUNTED = -1  # the turn of a warmup that only compiles
PRECISE = 0.01  # a ratio is known well enough within this
WAITING = 2.0  # times what rounds take, until they are taken whether the machine is at its best or not


@dataclass(frozen=True)
class Times:
    """Samples of rivals, in rounds, on each of several preparations of the data."""

    names: Sequence[str]
    turns: Sequence[Mapping[str, list[float]]]

    def ratios(self, at: int, to: int) -> list[list[float]]:
        """One rival's time over another's, round by round, by preparation."""
        pair = self.names[at], self.names[to]
        return [[a / b for a, b in zip(*(turn[name] for name in pair), strict=True)] for turn in self.turns]

    def ratio(self, at: int, to: int) -> float:
        """The mean of the preparations' median ratios."""
        return statistics.geometric_mean(statistics.median(ratios) for ratios in self.ratios(at, to))

    def spread(self) -> float:
        """How much slower the slowest rival is than the fastest, compared round by round."""
        pairs = itertools.permutations(range(len(self.names)), 2)
        return max((self.ratio(at, to) for at, to in pairs), default=1.0) - 1.0

    def is_slower(self, at: int, to: int) -> bool:
        """Whether the first is slower beyond noise: the interval of the ratio is all above 1."""
        if len(self.turns) < 2:
            return interval(self.ratios(at, to)[0])[0] > 1.0
        return math.log(self.ratio(at, to)) > self.error(at, to)

    def error(self, at: int, to: int) -> float:
        """Half the interval of the ratio's logarithm, with CONFIDENCE.

        Rounds on one preparation share their place in memory and their moment, so the interval is computed from the
        medians of the preparations (Student's).
        """
        medians = [math.log(statistics.median(ratios)) for ratios in self.ratios(at, to)]
        if len(medians) < 2:
            return math.inf
        scale = float(student.ppf((1 + CONFIDENCE) / 2, len(medians) - 1))
        return scale * statistics.stdev(medians) / math.sqrt(len(medians))

    def is_precise(self) -> bool:
        """Whether all ratios are known to within PRECISE."""
        pairs = itertools.combinations(range(len(self.names)), 2)
        return all(self.names[at] == self.names[to] or self.error(at, to) <= PRECISE for at, to in pairs)


class Session:
    """The drawn problems, a folder for files, and one store a warmup."""

    def __init__(self, options: argparse.Namespace, problems: Sequence[Problem], folder: Path, bar: Bar) -> None:
        self.options, self.problems, self.folder, self.bar = options, problems, folder, bar
        self._warmups: dict[tuple[str, int], tuple[Store, float]] = {}

    def warmed(self, effort: str, turn: int = 0) -> tuple[Store, float]:
        """A store that one warmup has filled from nothing, and its seconds; kernels are compiled before."""
        if (effort, turn) not in self._warmups:
            if effort != EXHAUSTIVE and turn != UNCOUNTED:
                self.warmed(*((EXHAUSTIVE, 0) if "regret" in self.options.parts else (effort, UNCOUNTED)))
            self._warmups[effort, turn] = self._warm(effort, turn)
        return self._warmups[effort, turn]

    def _warm(self, effort: str, turn: int) -> tuple[Store, float]:
        store = Store(self.folder / f"{effort}-{turn}.sqlite")
        name = f"{effort} warmup {turn + 1}" if turn != UNCOUNTED else f"compiling for {effort}"
        task = self.bar.add_task(name, total=1.0)
        begun = time.perf_counter()
        warmup(
            workload,
            self.problems,
            store,
            effort,
            progress=lambda state: self.bar.update(task, completed=state.fraction),
            spec=SPEC,
            shape_limit=self.options.shape_limit if effort == EXHAUSTIVE else None,
        )
        seconds = time.perf_counter() - begun
        self.bar.update(task, completed=1.0)
        return store, seconds

    def winner(self, problem: Problem, store: Store) -> Row | None:
        """What a caller with no limits gets."""
        rows = timed_rows(workload, problem.key, store)
        return next((row for row in rows if row.accuracy in ADMITS[ACCURACY]), None)

    def against(self, what: str, rivals: Callable[[Problem], Sequence[str] | None]) -> Iterator[tuple[Problem, Times]]:
        """Time each problem's rivals again, interleaved; a problem without rivals is left out.

        Rivals that differ are timed on more preparations, so that real differences can be told from noise.

        Raises
        ------
        SystemExit
            No problem has rivals.
        """
        found = [(problem, names) for problem in self.problems if (names := rivals(problem))]
        if not found:
            raise SystemExit("Argument 'shape-limit' must leave time to compile and time some candidates.")
        turns: list[list[Mapping[str, list[float]]]] = [[] for _ in found]
        most = max(self.options.preparations, self.options.most)
        task = self.bar.add_task(f"timing {what}", total=len(found) * most)
        for turn in range(most):  # of all, so that no moment decides
            for (problem, names), each in zip(found, turns, strict=True):
                if turn < self.options.preparations or not Times(names, each).is_precise():
                    each.append(self._timed(problem, names, turn))
                self.bar.advance(task)
        for (problem, names), each in zip(found, turns, strict=True):
            yield problem, Times(names, each)

    def _timed(self, problem: Problem, names: Sequence[str], turn: int) -> Mapping[str, list[float]]:
        """Seconds of each round by candidate, on freshly prepared data; a single candidate need not be timed."""
        unique = list(dict.fromkeys(names))
        if len(unique) == 1:
            return {unique[0]: [1.0]}
        trials = {name: workload.prepare(problem.key, name) for name in unique}
        entrants = {name: calibrate(trial.run, move=trial.move) for name, trial in trials.items()}
        rounds = self.options.rounds
        result = race(
            entrants,
            rounds=rounds,
            seconds=WAITING * rounds * sum(entrant.cost for entrant in entrants.values()),
            least=rounds,
            rng=random.Random(f"{problem.key} {turn}"),
            drop=False,
            reference=workload.reference(problem.key),
            roam=problem.threads == 1,
        )
        return result.samples
