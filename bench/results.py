"""What was measured on each line, and the arithmetic on it: medians, ratios, geometric means, shares of the roofs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from autotune.machine.roofline import Roofs
from bench import roofs
from bench.peers import OURS
from bench.shapes import Line


@dataclass
class Timing:
    """One form of one engine on one line; `rounds` holds the times of single runs in seconds, a list per round."""

    form: str
    algorithm: str = ""
    detail: str = ""
    error: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The fastest run of all rounds, in seconds."""
        return min(map(min, self.rounds))

    @property
    def medians(self) -> list[float]:
        """The median run of each round, in seconds."""
        return [statistics.median(times) for times in self.rounds]

    @property
    def median(self) -> float:
        """The median of the rounds' medians, in seconds."""
        return statistics.median(self.medians)


@dataclass(frozen=True)
class Ratio:
    """How many times faster ours is: by the median of the rounds' ratios, and by the fastest runs."""

    median: float
    best: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.best:.2f})"


@dataclass
class Measurement:
    """A line in one run: the forms of each engine (by its key), why something is left out, and the run's roofs."""

    forms: dict[str, list[Timing]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    roofs: Roofs | None = None

    def of(self, engine: str) -> Timing | None:
        """The engine's best form by median, or None if it has no figure here."""
        timed = [timing for timing in self.forms.get(engine, ()) if timing.rounds]
        return min(timed, key=lambda timing: timing.median, default=None)

    def ratio(self, engines: Sequence[str]) -> Ratio | None:
        """Ours against the best of some engines; above 1, ours is faster."""
        ours, theirs = self.of(OURS), [timing for key in engines if key != OURS and (timing := self.of(key))]
        if ours is None or not theirs:
            return None
        rival = min(theirs, key=lambda timing: timing.median)
        by_round = [them / us for us, them in zip(ours.medians, rival.medians, strict=False)]
        return Ratio(statistics.median(by_round), min(timing.best for timing in theirs) / ours.best)


@dataclass
class LineResult:
    """A line of the benchmark in every run; its figures are medians over the runs."""

    line: Line
    runs: list[Measurement] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Why something is left out, each reason once."""
        return list(dict.fromkeys(itertools.chain.from_iterable(run.notes for run in self.runs)))

    def of(self, engine: str) -> Timing | None:
        """The engine's best form in the run of its median time (the faster of two); None without a figure."""
        timed = sorted((timing for run in self.runs if (timing := run.of(engine))), key=lambda timing: timing.median)
        return timed[(len(timed) - 1) // 2] if timed else None

    def rival(self, engines: Iterable[str]) -> str | None:
        """The fastest of some engines by median, ours aside; None if none has a figure."""
        timed = {engine: timing for engine in engines if engine != OURS and (timing := self.of(engine))}
        return min(timed, key=lambda engine: timed[engine].median, default=None)

    def ratio(self, engines: Sequence[str]) -> Ratio | None:
        """Ours against the best of some engines: the median of the runs' ratios."""
        return _average([ratio for run in self.runs if (ratio := run.ratio(engines))], statistics.median)

    def gflops(self, engine: str) -> float | None:
        """GFLOP/s of the engine's best form at its median, counting the direct sum's operations."""
        timing = self.of(engine)
        return self.line.problem.flops / timing.median / 1e9 if timing else None

    def shares(self) -> dict[str, float]:
        """How much of each roof ours reaches, by the roof's name, the largest first: it binds. Empty without ours."""
        found: dict[str, list[float]] = {}
        for run in self.runs:
            ours = run.of(OURS)
            if ours is not None and ours.algorithm and run.roofs is not None:
                reached = roofs.shares(self.line.problem, ours.algorithm, run.roofs, ours.median)
                for name, share in reached.items():
                    found.setdefault(name, []).append(share)
        medians = {name: statistics.median(values) for name, values in found.items()}
        return dict(sorted(medians.items(), key=lambda item: -item[1]))


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def mean_ratio(results: Iterable[LineResult], engines: Sequence[str]) -> Ratio | None:
    """The geometric mean of the ratios over the lines that have one: the median of the runs' means."""
    by_run = itertools.zip_longest(*(result.runs for result in results))
    ratios = ([ratio for one in run if one and (ratio := one.ratio(engines))] for run in by_run)
    means = [mean for run in ratios if (mean := _average(run, geomean))]
    return _average(means, statistics.median)


def _average(ratios: Sequence[Ratio], mean: Callable[[Iterable[float]], float]) -> Ratio | None:
    """Both parts of some ratios averaged alike; None of nothing."""
    if not ratios:
        return None
    return Ratio(mean([ratio.median for ratio in ratios]), mean([ratio.best for ratio in ratios]))
