"""What is known of a problem's candidates while it is tuned, and the rows that it is stored as."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.store.rows import DECIDED
from autotune.store.store import Row
from autotune.timing.measure import Race, median_and_spread
from autotune.tuning.candidates import Timed
from autotune.workload import Candidate, Verdict


@dataclass
class Findings:
    """By name of a candidate. All times are in terms of the latest heat's winner, so that drift cancels."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    known: dict[str, Timed] = field(default_factory=dict)

    def reject(self, name: str, reason: str) -> None:
        """It is out, whatever was known of it."""
        self.verdicts[name] = self.verdicts.get(name, Verdict())._replace(reason=reason)
        for known in (self.samples, self.times, self.scores):
            known.pop(name, None)

    def add(self, heat: Race, leader: str | None = None) -> None:
        """Times of a heat; `leader` won the one before and ran in this one too."""
        level, _ = median_and_spread(heat.samples[heat.winner])
        if leader is not None:
            factor = level * heat.relative(leader) / self.times[leader]
            self.times = {name: seconds * factor for name, seconds in self.times.items()}
        for name, found in heat.samples.items():
            self.samples.setdefault(name, []).extend(found)
            self.times[name] = level * heat.relative(name)

    def rows(
        self,
        blank: Row,
        candidates: Sequence[Candidate],
        sources_of: Callable[[str], str],
        later: Mapping[str, Sequence[float]],
    ) -> list[Row]:
        """What there is to store; nothing of those left alone for want of time.

        Arguments:
            blank: with what all have in common.  later: samples that were taken after the heats, by name.
        """
        found = []
        for candidate in candidates:
            name = candidate.name
            verdict = self.verdicts.get(name, Verdict())
            row = blank._replace(
                candidate=name,
                sources=sources_of(name),
                reason=verdict.reason,
                error=verdict.error,
                error_limit=verdict.limit,
                workspace=candidate.workspace,
                accuracy=candidate.accuracy,
                bound=candidate.bound,
                estimate=candidate.estimate,
            )
            if name in self.scores:
                samples, seconds = [*self.samples[name], *later.get(name, ())], self.times[name]
                middle, spread = median_and_spread(samples)
                row = row._replace(
                    state=DECIDED,
                    reason="",
                    median=seconds,
                    spread=spread * seconds / middle,
                    count=len(samples),
                    score=self.scores[name],
                )
            if row.is_timed or row.reason:
                found.append(row)
        return found
