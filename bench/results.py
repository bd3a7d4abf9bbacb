"""What was measured on each line, and the arithmetic on it: medians, ratios, geometric means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.peers import OURS
from bench.shapes import Line


@dataclass
class Timing:
    """One form of one engine on one line; `rounds` holds the times of single runs in seconds, a list per round."""

    form: str
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
class LineResult:
    """A line of the benchmark: the forms of each engine (by its key), and why something is left out."""

    line: Line
    forms: dict[str, list[Timing]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of(self, engine: str) -> Timing | None:
        """The engine's best form by median, or None if it has no figure here."""
        timed = [timing for timing in self.forms.get(engine, ()) if timing.rounds]
        return min(timed, key=lambda timing: timing.median, default=None)

    def rival(self, engines: Iterable[str]) -> str | None:
        """The fastest of some engines by median, ours aside; None if none has a figure."""
        timed = {engine: timing for engine in engines if engine != OURS and (timing := self.of(engine))}
        return min(timed, key=lambda engine: timed[engine].median, default=None)

    def ratio(self, engines: Sequence[str]) -> Ratio | None:
        """Ours against the best of some engines; above 1, ours is faster."""
        ours, rival = self.of(OURS), self.rival(engines)
        if ours is None or rival is None:
            return None
        theirs = self.of(rival)
        by_round = [them / us for us, them in zip(ours.medians, theirs.medians, strict=False)]
        fastest = min(timing.best for engine in engines if engine != OURS and (timing := self.of(engine)))
        return Ratio(statistics.median(by_round), fastest / ours.best)

    def gflops(self, engine: str) -> float | None:
        """GFLOP/s of the engine's best form at its median, counting the direct sum's operations."""
        timing = self.of(engine)
        return self.line.problem.flops / timing.median / 1e9 if timing else None


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def mean_ratio(results: Iterable[LineResult], engines: Sequence[str]) -> Ratio | None:
    """The geometric means of the ratios over lines that have one."""
    ratios = [ratio for result in results if (ratio := result.ratio(engines))]
    if not ratios:
        return None
    return Ratio(geomean(ratio.median for ratio in ratios), geomean(ratio.best for ratio in ratios))
