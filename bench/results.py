"""Measurements of each line, and figures derived from them: medians, ratios, geometric means, shares of the roofs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from autotune.machine.roofline import Roofs
from bench import roofs
from bench.peers import CPUCONV
from bench.shapes import Line


@dataclass
class Timing:
    """One form of one engine on one line; `rounds` has the times of single runs in seconds, a list per round."""

    form: str
    algorithm: str = ""
    detail: str = ""
    error: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Time of the fastest run of all rounds, in seconds."""
        return min(map(min, self.rounds))

    @property
    def medians(self) -> list[float]:
        """Median time of each round, in seconds."""
        return [statistics.median(times) for times in self.rounds]

    @property
    def median(self) -> float:
        """Median of the rounds' medians, in seconds."""
        return statistics.median(self.medians)


@dataclass(frozen=True)
class Ratio:
    """Speed of cpuconv over a peer's: the median of the rounds' ratios, and the ratio of the fastest runs."""

    median: float
    best: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.best:.2f})"


@dataclass
class Measurement:
    """One line in one run: the forms of each engine by key, notes on omissions, and the run's roofs."""

    forms: dict[str, list[Timing]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    roofs: Roofs | None = None

    def of(self, engine: str) -> Timing | None:
        """Return the engine's best form by median, or None if it has no figure."""
        timed = [timing for timing in self.forms.get(engine, ()) if timing.rounds]
        return min(timed, key=lambda timing: timing.median, default=None)

    def ratio(self, engines: Sequence[str]) -> Ratio | None:
        """Return the ratio of cpuconv to the best of some engines; above 1, cpuconv is faster."""
        ours, theirs = self.of(CPUCONV), [timing for key in engines if key != CPUCONV and (timing := self.of(key))]
        if ours is None or not theirs:
            return None
        rival = min(theirs, key=lambda timing: timing.median)
        by_round = [them / us for us, them in zip(ours.medians, rival.medians, strict=False)]
        return Ratio(statistics.median(by_round), min(timing.best for timing in theirs) / ours.best)


@dataclass
class LineResult:
    """One line of the benchmark in every run; its figures are medians over the runs."""

    line: Line
    runs: list[Measurement] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Reasons for omissions, each once."""
        return list(dict.fromkeys(itertools.chain.from_iterable(run.notes for run in self.runs)))

    def of(self, engine: str) -> Timing | None:
        """Return the engine's best form in the run with its median time (the faster of two); None without a figure."""
        timed = sorted((timing for run in self.runs if (timing := run.of(engine))), key=lambda timing: timing.median)
        return timed[(len(timed) - 1) // 2] if timed else None

    def rival(self, engines: Iterable[str]) -> str | None:
        """Return the fastest of some engines by median, except cpuconv; None if none has a figure."""
        timed = {engine: timing for engine in engines if engine != CPUCONV and (timing := self.of(engine))}
        return min(timed, key=lambda engine: timed[engine].median, default=None)

    def ratio(self, engines: Sequence[str]) -> Ratio | None:
        """Return the ratio of cpuconv to the best of some engines: the median of the runs' ratios."""
        return _average([ratio for run in self.runs if (ratio := run.ratio(engines))], statistics.median)

    def gflops(self, engine: str) -> float | None:
        """Return the GFLOP/s of the engine's best form at its median, in operations of direct convolution."""
        timing = self.of(engine)
        return self.line.problem.flops / timing.median / 1e9 if timing else None

    def shares(self) -> dict[str, float]:
        """Return cpuconv's share of each roof by name, the binding one (largest share) first; empty without cpuconv."""
        found: dict[str, list[float]] = {}
        for run in self.runs:
            ours = run.of(CPUCONV)
            if ours is not None and ours.algorithm and run.roofs is not None:
                reached = roofs.shares(self.line.problem, ours.algorithm, run.roofs, ours.median)
                for name, share in reached.items():
                    found.setdefault(name, []).append(share)
        medians = {name: statistics.median(values) for name, values in found.items()}
        return dict(sorted(medians.items(), key=lambda item: -item[1]))


def geomean(values: Iterable[float]) -> float:
    """Return the geometric mean; NaN for no values."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def mean_ratio(results: Iterable[LineResult], engines: Sequence[str]) -> Ratio | None:
    """Return the geometric mean of the ratios over the lines that have one: the median of the runs' means."""
    by_run = itertools.zip_longest(*(result.runs for result in results))
    ratios = ([ratio for one in run if one and (ratio := one.ratio(engines))] for run in by_run)
    means = [mean for run in ratios if (mean := _average(run, geomean))]
    return _average(means, statistics.median)


def _average(ratios: Sequence[Ratio], mean: Callable[[Iterable[float]], float]) -> Ratio | None:
    """Average both parts of some ratios; None for no ratios."""
    if not ratios:
        return None
    return Ratio(mean([ratio.median for ratio in ratios]), mean([ratio.best for ratio in ratios]))
