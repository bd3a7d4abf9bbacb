"""Finding the fastest candidate of one problem: prune, compile, check, race, time the best again, store."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autotune.device import fingerprint
from autotune.measure import (
    EFFORTS,
    JUDGED,
    SAME,
    Effort,
    Entrant,
    Race,
    calibrate,
    is_faster,
    is_settled,
    median_and_spread,
    race,
)
from autotune.measure import Run as Loop
from autotune.store import Row, Store
from autotune.worker import compile_here, describe
from autotune.workload import ADMITS, REGIMES, Candidate, Verdict, Workload, check

WARM, COLD = REGIMES
HEAT = {WARM: 12, COLD: 6}  # candidates bound to data at once: each holds its packed weights, cold ones a cache's worth
FINAL_SHARE = 0.3  # of a problem's seconds, kept for timing the best again
FINAL_ROUNDS = 16  # on data that is prepared once
CLOSE = 1.03  # who is no further behind the best …
FINALISTS = 3  # … is timed again with it, but no more than these and the model's choice
ACCURACY = "standard"  # what the final is held for: what a caller asks for who asks for nothing

Tried = Mapping[str, Verdict]  # by name of a candidate: what came of trying it out
Watch = Callable[[float], None]  # told the best seconds so far


@dataclass
class Findings:
    """What is known of one problem's candidates while it is tuned, by name."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    known: dict[str, _Timed] = field(default_factory=dict)

    def reject(self, name: str, reason: str) -> None:
        self.verdicts[name] = self.verdicts.get(name, Verdict())._replace(reason=reason)


def choose(workload: Workload, key: str, store: Store, effort: str, regime: str = WARM) -> list[Candidate]:
    """The candidates worth compiling: the most promising of those that no stored time rules out."""
    candidates, _ = workload.candidates(key, effort)
    known = [_Timed(row.accuracy, row.workspace, row.median) for row in timed_rows(workload, key, store, regime)]
    seeds = {name: place for place, name in enumerate(store.seeds(key, regime))}
    # The model's choice stays first, as ties go to it.
    ordered = candidates[:1] + sorted(candidates[1:], key=lambda candidate: seeds.get(candidate.name, len(seeds)))
    return _promising([candidate for candidate in ordered if _ruled_out(candidate, known) is None], effort)


def timed_rows(workload: Workload, key: str, store: Store, regime: str = WARM) -> list[Row]:
    """The stored times of candidates that are as they were then, best first."""
    rows = store.rows(fingerprint().key, key, regime=regime)
    return [row for row in rows if row.state == "ok" and row.sources in workload.sources]


def tune(
    workload: Workload,
    key: str,
    candidates: list[Candidate],
    tried: Tried,
    store: Store,
    *,
    effort: Effort,
    regime: str = WARM,
    deadline: float | None = None,
    watch: Watch = lambda seconds: None,
) -> Row | None:
    """Time the compiled candidates of a problem in this process and store what was found.

    Arguments:
        candidates: the model's choice first, which ties go to.
        tried: what came of those that were compiled; others are left alone.
        deadline: of `time.monotonic()`, past which no further candidate is begun.

    Returns:
        The best row, or None if every candidate was rejected.
    """
    findings = Findings(verdicts=dict(tried))
    ready = [each for each in candidates if each.name in tried and not tried[each.name].reason]
    _Search(workload, key, effort, regime, deadline, watch, findings).run(ready)
    rows = [row._replace(regime=regime) for row in _rows(workload, key, candidates, findings)]
    store.put(rows + _carried(rows, timed_rows(workload, key, store, regime)))
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
    tried = {candidate.name: compile_here(workload, key, candidate.name) for candidate in chosen}
    store.register(fingerprint())
    return tune(workload, key, chosen, tried, store, effort=EFFORTS[effort])


class _Timed(NamedTuple):
    accuracy: str
    workspace: int
    seconds: float


def _ruled_out(candidate: Candidate, known: Iterable[_Timed]) -> _Timed | None:
    """What serves every caller that the candidate could serve, and was measured faster than it can be but for nothing
    worth having."""
    for timed in known:
        serves = timed.accuracy in ADMITS[candidate.accuracy] and timed.workspace <= candidate.workspace
        if serves and timed.seconds <= (1 + SAME) * candidate.bound:
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
    regime: str
    deadline: float | None
    watch: Watch
    findings: Findings
    entry: float = 0.0  # seconds that getting a candidate ready took, at most

    def run(self, ready: list[Candidate]) -> None:
        """Race all, a heat at a time with the last winner among them, then the best once more."""
        rng = random.Random(self.key)
        share = self.effort.seconds * (1 - FINAL_SHARE) / max(1, len(ready))
        waiting = list(ready)
        leader: dict[str, Entrant] = {}
        model = ""
        while waiting and not self.is_late(self.entry if leader else 0.0):
            heat = dict(leader)
            while waiting and len(heat) < HEAT[self.regime] and not (heat and self.is_late(self.entry)):
                candidate = waiting.pop(0)
                if (entrant := self.enter(candidate)) is not None:
                    heat[candidate.name] = entrant
                    model = model or candidate.name
            if len(heat) > len(leader):
                seconds = self.left(share * len(heat))
                result = race(heat, rounds=self.effort.rounds, seconds=seconds, rng=rng, reference=self.reference())
                self.rank(result, *leader)
                leader = {result.winner: heat[result.winner]}
                self.watch(min(self.findings.times.values()))
        self.findings.scores = dict(self.findings.times)
        if model:
            self.decide(ready, model, rng)

    def is_late(self, ahead: float = 0.0) -> bool:
        """Whether the deadline comes before something that takes so many seconds is done."""
        return self.deadline is not None and time.monotonic() + ahead >= self.deadline

    def reference(self) -> Loop | None:
        """The loop that tells whether the machine's speed changed, if it can be had."""
        try:
            return self.workload.reference(self.key)
        except Exception:  # rounds are then judged without
            return None

    def left(self, seconds: float) -> float:
        """`seconds`, or what the deadline leaves of them."""
        return seconds if self.deadline is None else min(seconds, max(0.0, self.deadline - time.monotonic()))

    def enter(self, candidate: Candidate) -> Entrant | None:
        """The candidate ready to run, once its output is known to be right; else None and the reason is noted."""
        findings, name = self.findings, candidate.name
        if (better := _ruled_out(candidate, findings.known.values())) is not None:
            bound, best = candidate.bound * 1e6, better.seconds * 1e6
            findings.reject(name, f"pruned: it cannot take less than {bound:.1f} µs, another takes {best:.1f} µs")
            return None
        begun = time.monotonic()
        try:
            trial = self.workload.prepare(self.key, name, self.regime)
            if math.isnan(findings.verdicts[name].limit):  # no worker has run it
                findings.verdicts[name] = check(trial)
                if findings.verdicts[name].reason:
                    return None
            entrant = calibrate(trial.run, candidate.bound)
        except Exception as failure:
            findings.reject(name, f"run: {describe(failure)}")
            return None
        finally:
            self.entry = max(self.entry, time.monotonic() - begun)
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

    def decide(self, ready: list[Candidate], model: str, rng: random.Random) -> None:
        """Time the best and the model's choice again; unless one of them wins clearly, nothing ranks before that."""
        findings = self.findings
        rivals = [c.name for c in ready if c.name in findings.times and c.accuracy in ADMITS[ACCURACY]] or [model]
        best = min(rivals, key=findings.times.__getitem__)
        close = [name for name in rivals if findings.times[name] <= CLOSE * findings.times[best]]
        finalists = sorted({*close, model}, key=findings.times.__getitem__)[:FINALISTS]
        result = self.final(list(dict.fromkeys([*finalists, model])), rng)
        if result.rounds:
            level = findings.times[best]
            for name, samples in result.samples.items():
                findings.samples[name].extend(samples)
                findings.times[name] = level * statistics.median(result.ratios(name, best))
            findings.scores = dict(findings.times)
            best = min(result.standing, key=findings.times.__getitem__)
        if best != model and not is_faster(result.samples.get(best, []), result.samples.get(model, [])):
            for name in {*rivals, model}:
                findings.scores[name] = max(findings.scores[name], findings.scores[model])

    def final(self, names: list[str], rng: random.Random) -> Race:
        """Rounds of all on data that is prepared afresh several times, so that no place in memory decides."""
        result = Race(names)
        seconds = self.effort.seconds * FINAL_SHARE / self.effort.finals
        for _ in range(self.effort.finals if len(names) > 1 else 0):
            if self.is_late(len(names) * self.entry):
                break
            try:
                entrants = {name: calibrate(self.workload.prepare(self.key, name, self.regime).run) for name in names}
            except Exception:  # such as want of memory: what is known without this stands
                break
            result.kept += race(
                entrants,
                rounds=FINAL_ROUNDS,
                seconds=self.left(seconds),
                rng=rng,
                least=0 if self.is_late() else JUDGED,
                drop=False,
                enough=is_settled,
                reference=self.reference(),
            ).kept
        return result


def _carried(rows: list[Row], stored: list[Row]) -> list[Row]:
    """Stored times of candidates not timed this time, put in terms of today's speed by those timed both times."""
    old = {row.candidate: row for row in stored}
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
        verdict = findings.verdicts.get(name, Verdict())
        row = Row(
            fingerprint().key,
            key,
            name,
            workload.sources_of(name),
            "rejected",
            error=verdict.error,
            error_limit=verdict.limit,
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
        elif verdict.reason:
            row = row._replace(reason=verdict.reason)
        else:  # left alone for want of time
            continue
        rows.append(row)
    return rows
