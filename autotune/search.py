"""Finding the fastest candidate of one problem: prune, compile, check, race, confirm, store."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autotune.device import fingerprint
from autotune.measure import EFFORTS, JUDGED, Effort, Entrant, Race, calibrate, is_faster, median_and_spread, race
from autotune.store import Row, Store
from autotune.worker import describe
from autotune.workload import ADMITS, Candidate, Workload

HEAT = 12  # candidates bound to data at once: each holds its own inputs and packed weights
CONFIRM_SHARE = 0.25  # of a problem's seconds, kept for the winner's second race
CONFIRM_ROUNDS = 8
ACCURACY = "standard"  # what the winner is confirmed for: what a caller asks for who asks for nothing

Compiled = Mapping[str, str]  # name of a candidate: "" or why it did not compile
Watch = Callable[[float], None]  # told the best seconds so far


@dataclass
class Findings:
    """What is known of one problem's candidates while it is tuned, by name."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    known: dict[str, _Timed] = field(default_factory=dict)


def choose(workload: Workload, key: str, store: Store, effort: str) -> list[Candidate]:
    """The candidates worth compiling: the most promising of those that no stored time rules out."""
    candidates, _ = workload.candidates(key, effort)
    known = [
        _Timed(row.accuracy, row.workspace, row.median)
        for row in store.rows(fingerprint().key, key)
        if row.state == "ok" and row.sources == workload.sources
    ]
    return _promising([candidate for candidate in candidates if _ruled_out(candidate, known) is None], effort)


def tune(
    workload: Workload,
    key: str,
    candidates: list[Candidate],
    compiled: Compiled,
    store: Store,
    *,
    effort: Effort,
    deadline: float | None = None,
    watch: Watch = lambda seconds: None,
) -> Row | None:
    """Time the compiled candidates of a problem in this process and store what was found.

    Arguments:
        candidates: best estimate first; the first is the model's choice, which ties go to.
        compiled: "" or a reason for each that was compiled; others are left alone.
        deadline: of `time.monotonic()`, past which no further candidate is begun.

    Returns:
        The best row, or None if every candidate was rejected.
    """
    findings = Findings(rejected={name: reason for name, reason in compiled.items() if reason})
    ready = [candidate for candidate in candidates if compiled.get(candidate.name) == ""]
    _Search(workload, key, effort, deadline, watch, findings).run(ready)
    rows = _rows(workload, key, candidates, findings)
    store.put(rows + _carried(rows, store.rows(fingerprint().key, key)))
    timed = [row for row in rows if row.state == "ok"]
    return min(timed, key=lambda row: (row.score, row.estimate), default=None)


def profile(
    workload: Workload,
    key: str,
    store: Store,
    *,
    effort: str = "quick",
    workspace_limit: int | None = None,
    accuracies: tuple[str, ...] | None = None,
) -> Row | None:
    """Tune one problem here and now, compiling in this process.

    Arguments:
        workspace_limit: bytes.  accuracies: classes; candidates beyond the limits are not timed.

    Returns:
        The best row, or None if nothing that keeps the limits works.
    """
    admitted = [
        candidate
        for candidate in workload.candidates(key, effort)[0]
        if (workspace_limit is None or candidate.workspace <= workspace_limit)
        and (accuracies is None or candidate.accuracy in accuracies)
    ]
    chosen = _promising(admitted, effort)
    compiled = {candidate.name: compile_here(workload, key, candidate.name) for candidate in chosen}
    store.register(fingerprint())
    return tune(workload, key, chosen, compiled, store, effort=EFFORTS[effort])


def compile_here(workload: Workload, key: str, name: str) -> str:
    """ "" or why a candidate does not compile in this process."""
    try:
        workload.compile(key, name)
    except Exception as error:
        return f"compile: {describe(error)}"
    return ""


class _Timed(NamedTuple):
    accuracy: str
    workspace: int
    seconds: float


def _ruled_out(candidate: Candidate, known: Iterable[_Timed]) -> _Timed | None:
    """What was measured faster than the candidate can be, and serves every caller that the candidate could serve."""
    for timed in known:
        serves = timed.accuracy in ADMITS[candidate.accuracy] and timed.workspace <= candidate.workspace
        if serves and timed.seconds < candidate.bound:
            return timed
    return None


def _promising(candidates: list[Candidate], effort: str) -> list[Candidate]:
    """The first of the candidates that an effort affords, among them the first of each accuracy class."""
    firsts = {candidate.accuracy: candidate for candidate in reversed(candidates)}.values()
    others = [candidate for candidate in candidates if candidate not in firsts]
    chosen = {*firsts, *others[: max(0, EFFORTS[effort].candidates - len(firsts))]}
    return [candidate for candidate in candidates if candidate in chosen]


@dataclass
class _Search:
    """The timing of one problem."""

    workload: Workload
    key: str
    effort: Effort
    deadline: float | None
    watch: Watch
    findings: Findings

    def run(self, ready: list[Candidate]) -> None:
        """Race all, HEAT at a time with the last winner among them, then the winner against the model's choice."""
        rng = random.Random(self.key)
        share = self.effort.seconds * (1 - CONFIRM_SHARE) / max(1, len(ready))
        waiting = list(ready)
        leader: dict[str, Entrant] = {}
        model: dict[str, Entrant] = {}
        while waiting and not self.is_late():
            heat = dict(leader)
            while waiting and len(heat) < HEAT and not (heat and self.is_late()):
                candidate = waiting.pop(0)
                if (entrant := self.enter(candidate)) is not None:
                    heat[candidate.name] = entrant
                    model = model or {candidate.name: entrant}
            if len(heat) > len(leader):
                result = race(heat, rounds=self.effort.rounds, seconds=self.left(share * len(heat)), rng=rng)
                self.rank(result, *leader)
                leader = {result.winner: heat[result.winner]}
                self.watch(min(self.findings.times.values()))
        self.findings.scores = dict(self.findings.times)
        if self.findings.scores:
            self.confirm(ready, model | leader, *model, rng=rng)

    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def left(self, seconds: float) -> float:
        """`seconds`, or what the deadline leaves of them."""
        return seconds if self.deadline is None else min(seconds, max(0.0, self.deadline - time.monotonic()))

    def enter(self, candidate: Candidate) -> Entrant | None:
        """The candidate ready to run, once its output is known to be right; else None and the reason is noted."""
        findings, name = self.findings, candidate.name
        if (better := _ruled_out(candidate, findings.known.values())) is not None:
            bound, best = candidate.bound * 1e6, better.seconds * 1e6
            findings.rejected[name] = f"pruned: it cannot take less than {bound:.1f} µs, another takes {best:.1f} µs"
            return None
        try:
            trial = self.workload.prepare(self.key, name)
            error, limit = float(trial.check()), float(trial.limit)
            findings.errors[name] = error, limit
            if not error <= limit:  # NaN is over any limit
                findings.rejected[name] = f"wrong: relative error {error:.2e} over the limit {limit:.2e}"
                return None
            entrant = calibrate(trial.run)
        except Exception as failure:
            findings.rejected[name] = f"run: {describe(failure)}"
            return None
        findings.known[name] = _Timed(candidate.accuracy, candidate.workspace, entrant.seconds)
        return entrant

    def rank(self, result: Race, leader: str | None = None) -> None:
        """Add a heat. All times are kept in terms of the latest winner's median, so that drift cancels."""
        times, samples = self.findings.times, self.findings.samples
        level, _ = median_and_spread(result.samples[result.winner])
        if leader is not None:
            factor = level * result.relative(leader) / times[leader]
            times.update({name: seconds * factor for name, seconds in times.items()})
        for name, found in result.samples.items():
            samples.setdefault(name, []).extend(found)
            times[name] = level * result.relative(name)

    def confirm(self, ready: list[Candidate], held: dict[str, Entrant], model: str, *, rng: random.Random) -> None:
        """Race the winner once more against the model's choice; unless it wins, nothing ranks before that."""
        scores = self.findings.scores
        rivals = [c.name for c in ready if c.name in scores and (c.accuracy in ADMITS[ACCURACY] or c.name == model)]
        winner = min(rivals, key=scores.__getitem__)
        if winner == model:
            return
        if winner not in held:
            held[winner] = calibrate(self.workload.prepare(self.key, winner).run)
        result = race(
            {name: held[name] for name in (model, winner)},
            rounds=CONFIRM_ROUNDS,
            seconds=self.left(self.effort.seconds * CONFIRM_SHARE),
            rng=rng,
            least=0 if self.is_late() else JUDGED,
            drop=False,
        )
        if result.rounds:
            for name, samples in result.samples.items():
                self.findings.samples[name].extend(samples)
        if not is_faster(result.samples[winner], result.samples[model]):
            for name in rivals:
                scores[name] = max(scores[name], scores[model])


def _carried(rows: list[Row], stored: list[Row]) -> list[Row]:
    """Stored rows of candidates not timed this time, put in terms of today's speed by those timed both times."""
    old = {row.candidate: row for row in stored if row.state == "ok" and row.sources == rows[0].sources} if rows else {}
    both = [row.median / old[row.candidate].median for row in rows if row.state == "ok" and row.candidate in old]
    if not both:
        return []
    factor = statistics.median(both)
    absent = old.keys() - {row.candidate for row in rows}
    return [
        row._replace(median=row.median * factor, spread=row.spread * factor, score=row.score * factor)
        for name, row in old.items()
        if name in absent
    ]


def _rows(workload: Workload, key: str, candidates: list[Candidate], findings: Findings) -> list[Row]:
    rows = []
    for candidate in candidates:
        name = candidate.name
        error, limit = findings.errors.get(name, (math.nan, math.nan))
        row = Row(
            fingerprint().key,
            key,
            name,
            workload.sources,
            "rejected",
            error=error,
            error_limit=limit,
            workspace=candidate.workspace,
            accuracy=candidate.accuracy,
            bound=candidate.bound,
            estimate=candidate.estimate,
        )
        if name in findings.scores:
            middle, spread = median_and_spread(findings.samples[name])
            seconds, count = findings.times[name], len(findings.samples[name])
            row = row._replace(
                state="ok", median=seconds, spread=spread * seconds / middle, count=count, score=findings.scores[name]
            )
        elif name in findings.rejected:
            row = row._replace(reason=findings.rejected[name])
        else:  # left alone for want of time
            continue
        rows.append(row)
    return rows
