"""Results for a problem's candidates during tuning, and their conversion to rows of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.store.rows import DECIDED
from autotune.store.store import Row
from autotune.timing.rounds import Rounds
from autotune.timing.sample import median_and_spread
from autotune.tuning.candidates import Timed
from autotune.workload import Candidate, Searchable, Verdict


@dataclass
class CandidateResults:
    """Results by candidate name. Times are scaled to the leader of the latest rounds, which cancels drift."""

    verdicts: dict[str, Verdict]
    known: dict[str, Timed] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    rounds: Rounds = field(default_factory=Rounds)

    def reject(self, name: str, reason: str) -> None:
        """Reject a candidate, whatever its previous results."""
        self.verdicts[name] = self.verdicts.get(name, Verdict())._replace(reason=reason)
        self.times.pop(name, None)

    def rank(self, names: Sequence[str], leader: str) -> None:
        """Set the times of candidates that just ran together, relative to the leader's, and rescale all others."""
        level = self.rounds.median(leader)
        times = {name: level * self.rounds.compare(name, leader).centre for name in names}
        both = next((name for name in names if name in self.times), None)
        factor = 1.0 if both is None else times[both] / self.times[both]
        self.times = {name: seconds * factor for name, seconds in self.times.items()} | times

    def rows(
        self,
        blank: Row,
        candidates: Sequence[Candidate],
        workload: Searchable,
        scores: Mapping[str, float],
    ) -> list[Row]:
        """Return the rows to store; none for candidates that were skipped for lack of time.

        Parameters
        ----------
        blank
            A row with the common fields.
        scores
            Ranking scores in seconds, of the timed candidates.
        """
        rows = []
        for candidate in candidates:
            name = candidate.name
            verdict = self.verdicts.get(name, Verdict())
            row = blank._replace(
                candidate=name,
                sources=workload.sources_of(name),
                reason=verdict.reason,
                error=verdict.error,
                error_limit=verdict.limit,
                workspace=candidate.workspace,
                accuracy=candidate.accuracy,
                bound=candidate.bound,
                estimate=candidate.estimate,
            )
            if name in scores:
                samples, seconds = self.rounds.samples(name), self.times[name]
                middle, spread = median_and_spread(samples)
                row = row._replace(
                    state=DECIDED,
                    reason="",
                    median=seconds,
                    spread=spread * seconds / middle,
                    count=len(samples),
                    score=scores[name],
                    kernels=workload.kernels_hash(blank.problem, name),
                )
            if row.is_timed or row.reason:
                rows.append(row)
        return rows
