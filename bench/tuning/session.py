"""Warmups shared by several parts, each done once, and timing of their winners against each other."""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress as Bar

from autotune.store.store import Row, Store
from autotune.timing.compare import Ratio, compare
from autotune.timing.rounds import Rounds, run_rounds
from autotune.timing.sample import calibrate
from autotune.tuning.candidates import timed_rows
from autotune.tuning.warmup import warmup
from autotune.tuning.worker import Workers
from autotune.workload import ADMITS, Problem
from cpuconv.tuning.workload import workload

WORKERS: Workers | None = Workers("cpuconv.tuning.workload:workload")
ACCURACY = "standard"
EXHAUSTIVE = "exhaustive"
UNCOUNTED = -1  # the turn of a warmup that only compiles kernels
PRECISE = 0.01  # required precision of a ratio


@dataclass(frozen=True)
class Times:
    """Rounds of rivals, on each of several preparations of the data."""

    names: Sequence[str]
    visits: Sequence[Rounds]

    def compare(self, at: int, to: int) -> Ratio:
        """Return one rival's time over another's.

        Rounds on one preparation share its memory and its moment, so the interval is that of the preparations' centres.
        """
        ratios = [rounds.compare(self.names[at], self.names[to]) for rounds in self.visits]
        return ratios[0] if len(ratios) == 1 else compare([ratio.centre for ratio in ratios])

    def spread(self) -> float:
        """Return by which fraction the slowest rival is slower than the fastest, compared round by round."""
        pairs = itertools.permutations(range(len(self.names)), 2)
        return max((self.compare(at, to).centre for at, to in pairs), default=1.0) - 1.0

    def is_precise(self) -> bool:
        """Whether the intervals of all ratios are within PRECISE."""
        pairs = [self.compare(at, to) for at, to in itertools.combinations(range(len(self.names)), 2)]
        return all(ratio.high <= ratio.low * (1 + PRECISE) ** 2 for ratio in pairs)


class Session:
    """The drawn problems, a folder for files, and one store per warmup."""

    def __init__(self, options: argparse.Namespace, problems: Sequence[Problem], folder: Path, bar: Bar) -> None:
        self.options, self.problems, self.folder, self.bar = options, problems, folder, bar
        self._warmups: dict[tuple[str, int], tuple[Store, float]] = {}

    def warmed(self, effort: str, turn: int = 0) -> tuple[Store, float]:
        """Return the store that one warmup filled, and its seconds; kernels are compiled in advance."""
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
            workers=WORKERS,
            shape_limit=self.options.shape_limit if effort == EXHAUSTIVE else None,
        )
        seconds = time.perf_counter() - begun
        self.bar.update(task, completed=1.0)
        return store, seconds

    def winner(self, problem: Problem, store: Store) -> Row | None:
        """Return the row that a caller without limits gets."""
        rows = timed_rows(workload, problem.key, store)
        return next((row for row in rows if row.accuracy in ADMITS[ACCURACY]), None)

    def against(self, what: str, rivals: Callable[[Problem], Sequence[str] | None]) -> Iterator[tuple[Problem, Times]]:
        """Time each problem's rivals again, interleaved; a problem without rivals is left out.

        Rivals that differ are timed on more preparations, so that real differences can be told from noise.

        Raises
        ------
        SystemExit
            If no problem has rivals.
        """
        found = [(problem, names) for problem in self.problems if (names := rivals(problem))]
        if not found:
            raise SystemExit("Argument 'shape-limit' must leave time to compile and time some candidates.")
        visits: list[list[Rounds]] = [[] for _ in found]
        most = max(self.options.preparations, self.options.most)
        task = self.bar.add_task(f"timing {what}", total=len(found) * most)
        for turn in range(most):  # all problems in each turn, so that no moment decides
            for (problem, names), each in zip(found, visits, strict=True):
                if turn < self.options.preparations or not Times(names, each).is_precise():
                    each.append(self._timed(problem, names, turn))
                self.bar.advance(task)
        for (problem, names), each in zip(found, visits, strict=True):
            yield problem, Times(names, each)

    def _timed(self, problem: Problem, names: Sequence[str], turn: int) -> Rounds:
        """Time rounds of the candidates on newly prepared data; a single candidate is not timed."""
        rounds, unique = Rounds(), list(dict.fromkeys(names))
        if len(unique) > 1:
            trials = {name: workload.prepare(problem.key, name) for name in unique}
            entrants = {name: calibrate(trial.run, trial.move) for name, trial in trials.items()}
            rng, probe = random.Random(f"{problem.key} {turn}"), workload.speed_probe(problem.key)
            run_rounds(rounds, entrants, rng=rng, probe=probe, most=self.options.rounds)
        return rounds
