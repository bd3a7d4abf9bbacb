"""Search for the fastest candidate of a problem: check and time all, then time the best until one clearly wins."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autotune.machine.device import fingerprint
from autotune.store.rows import COLD, DECIDED, PROVISIONAL, WARM, State, carried
from autotune.store.store import Row, Store
from autotune.timing.compare import MARGIN, MIN_ROUNDS
from autotune.timing.rounds import run_rounds
from autotune.timing.sample import Entrant, Summary, calibrate, no_move
from autotune.tuning.candidates import Timed, promising, ruled_out, timed_rows
from autotune.tuning.effort import EFFORTS, Effort
from autotune.tuning.results import CandidateResults
from autotune.tuning.worker import compile_here, describe
from autotune.workload import ADMITS, Candidate, Searchable, Verdict, check

GAIN = 1.015  # min. speed-up over the model's choice: day to day, the ratio of two candidates varies by 1%
MIN_VISITS = 2  # min. visits for a decision: time and memory addresses may favour one candidate by more than `GAIN`
MAX_VISITS = 10  # max. visits of a problem: equal candidates would use all the time
FIRST_SHARE = 0.4  # share of a problem's seconds for the first visit: preparation takes at most as long again
VISIT_SHARE = 0.1  # share of a problem's seconds for a later visit: four fit after the first, which mostly suffices
MAX_ENTRANTS = 12  # max. candidates prepared at the same time: each owns its packed weights
ACCURACY = "standard"  # accuracy class of candidates that are timed again: the callers' default
SUMMARY: Mapping[str, Summary] = {WARM: min, COLD: statistics.median}  # time of a sample from its parts

Tried = Mapping[str, Verdict]  # results of trial runs, by candidate name
Watch = Callable[[float], None]  # called with the best time so far, in seconds


def decide_all(
    searches: Sequence[Search],
    until: float,
    deadline: float | None = None,
    begins: Callable[[Search], object] = lambda search: None,
    ended: Callable[[Search], object] = lambda search: None,
) -> None:
    """Visit all open problems in turn, repeatedly, until all are decided or time is up.

    Parameters
    ----------
    until
        Time by `time.monotonic()` after which each problem still gets its `MIN_VISITS`, but no more.
    deadline
        Time after which there are no more visits.
    begins, ended
        Called with the search before and after each visit.
    """
    while open_searches := [search for search in searches if search.is_open]:
        for search in open_searches:
            late = _is_late(until) and search.visits >= MIN_VISITS
            if late or _is_late(deadline, search.entry * len(search.survivors)):
                return
            begins(search)
            search.visit(deadline)
            ended(search)


def profile(
    workload: Searchable,
    key: str,
    store: Store,
    *,
    effort: str = "quick",
    workspace_limit: int | None = None,
    accuracies: tuple[str, ...] | None = None,
) -> Row | None:
    """Tune one problem now, and compile in this process.

    Parameters
    ----------
    workspace_limit, accuracies
        Limits in bytes, and accuracy classes: other candidates are not timed.

    Returns
    -------
    Row or None
        The best row, or None if no candidate within the limits works.
    """
    admitted = [
        candidate
        for candidate in workload.candidates(key, effort)[0]
        if (workspace_limit is None or candidate.workspace <= workspace_limit)
        and (accuracies is None or candidate.accuracy in accuracies)
    ]
    chosen = promising(admitted, effort)
    tried = {candidate.name: compile_here(workload, key, candidate.name) for candidate in chosen}
    store.register(fingerprint())
    search = Search(workload, key, chosen, tried, effort=EFFORTS[effort])
    decide_all([search], time.monotonic() + EFFORTS[effort].seconds)
    return search.save(store)


class Search:
    """The timing of one problem, in visits.

    A visit runs rounds of the candidates that may still be the fastest, on newly prepared data and preferably at
    another time. The first visit times all candidates.
    """

    def __init__(
        self,
        workload: Searchable,
        key: str,
        candidates: list[Candidate],
        tried: Tried,
        *,
        effort: Effort,
        weights: str = WARM,
        watch: Watch = lambda seconds: None,
    ) -> None:
        """Time these candidates.

        Parameters
        ----------
        candidates : list of Candidate
            The model's choice first; it wins ties.
        tried : mapping of str to Verdict
            Results of the candidates that were compiled; others are skipped.
        watch : callable
            Called with the best time so far, in seconds.
        """
        self.workload, self.key, self.candidates = workload, key, candidates
        self.effort, self.weights, self.watch = effort, weights, watch
        self.results = CandidateResults(dict(tried))
        self.rounds = self.results.rounds
        self.visits = 0
        self.survivors = [each.name for each in candidates if each.name in tried and not tried[each.name].reason]
        self.entry = 0.0  # longest preparation of a candidate, in seconds
        self.ran: set[str] = set()
        self._calibrated: dict[str, Entrant] = {}
        self._rng = random.Random(key)

    def visit(self, deadline: float | None = None) -> None:
        """Run rounds of the survivors, in groups that may be prepared together, each with the last group's leader.

        After the `deadline`, by `time.monotonic()`, no further candidate is begun.
        """
        waiting = [each for each in self.candidates if each.name in self.survivors]
        share = VISIT_SHARE if self.visits else FIRST_SHARE
        seconds = self.effort.seconds * share / max(1, len(waiting))
        survivors: list[str] = []
        group: dict[str, Entrant] = {}
        while waiting and not _is_late(deadline, self.entry if group else 0.0):
            old = len(group)
            while waiting and len(group) < MAX_ENTRANTS and not (group and _is_late(deadline, self.entry)):
                candidate = waiting.pop(0)
                if (entrant := self.enter(candidate)) is not None:
                    group[candidate.name] = entrant
            if len(group) == old:
                break
            remaining = self.run(group, _left(deadline, seconds * len(group)), MIN_ROUNDS if deadline is None else 1)
            leader = self.leader(remaining)
            self.results.rank([*group], leader)
            survivors = [name for name in survivors if name not in group] + remaining
            group = {leader: group[leader]}
            self.watch(min(self.results.times.values()))
        self.visits += 1
        self.survivors = self.select_survivors(survivors)

    def run(self, entrants: Mapping[str, Entrant], seconds: float, least: int) -> list[str]:
        """Run rounds of these; return the candidates that remain at the end."""
        remaining = [*entrants]
        self.ran |= {*entrants}

        def select(names: list[str]) -> list[str]:
            nonlocal remaining
            leader = self.leader(names)
            remaining = [name for name in names if self.rounds.compare(name, leader).low <= 1 + MARGIN]
            return remaining if self.can_gain(remaining) else []

        try:
            probe = self.workload.speed_probe(self.key)
        except Exception:  # without a probe, all rounds count
            probe = None
        run_rounds(
            self.rounds,
            entrants,
            rng=self._rng,
            probe=probe,
            visit=self.visits + 1,
            seconds=seconds,
            least=least,
            select=select,
        )
        return remaining

    def enter(self, candidate: Candidate) -> Entrant | None:
        """Prepare a candidate and check its output; on failure record the reason and return None."""
        results, name = self.results, candidate.name
        if name not in results.known and (better := ruled_out(candidate, results.known.values())) is not None:
            bound, best = candidate.bound * 1e6, better.seconds * 1e6
            results.reject(name, f"pruned: it cannot take less than {bound:.1f} µs, another takes {best:.1f} µs")
            return None
        entrant = self.ready(name)
        if entrant is not None:
            results.known[name] = Timed(candidate.accuracy, candidate.workspace, entrant.seconds)
        return entrant

    def ready(self, name: str) -> Entrant | None:
        """Prepare a candidate with its own data; if it fails or is wrong, record the reason and return None."""
        results, begun = self.results, time.monotonic()
        try:
            trial = self.workload.prepare(self.key, name, self.weights)
            if math.isnan(results.verdicts[name].limit):  # not checked by a worker
                results.verdicts[name] = check(trial)
                if results.verdicts[name].reason:
                    return None
            if (known := self._calibrated.get(name)) is None:
                known = calibrate(trial.run, trial.move, SUMMARY[self.weights])
                self._calibrated[name] = replace(known, run=no_move, move=no_move)  # without references to data
            return replace(known, run=trial.run, move=trial.move)
        except Exception as failure:
            results.reject(name, f"run: {describe(failure)}")
            return None
        finally:
            self.entry = max(self.entry, time.monotonic() - begun)

    @property
    def eligible(self) -> list[str]:
        """Candidates that ran and have default accuracy, or all that ran if none has; the model's choice first."""
        verdicts = self.results.verdicts
        ran = [each for each in self.candidates if each.name in self.ran and not verdicts[each.name].reason]
        return [each.name for each in ran if each.accuracy in ADMITS[ACCURACY]] or [each.name for each in ran]

    def leader(self, names: Sequence[str]) -> str:
        """Return the fastest of candidates that ran together, among those of default accuracy if there are any."""
        eligible = set(self.eligible)
        return self.rounds.fastest([name for name in names if name in eligible] or names)

    def is_proven(self, name: str) -> bool:
        """Whether a candidate is the model's choice or may rank before it; until a second visit, by the first alone."""
        model = self.eligible[0]
        ratio = self.rounds.compare(model, name)
        if name == model or ratio.centre < GAIN or ratio.low <= 1.0:
            return name == model
        won = sum(visit.centre >= GAIN for visit in self.rounds.by_visit(model, name))
        return won >= min(MIN_VISITS, self.visits)

    def can_gain(self, names: Sequence[str]) -> bool:
        """Whether a candidate may be faster than the current choice by more than `MARGIN`."""
        choice = self.leader([name for name in names if self.is_proven(name)] or names)
        return any(self.rounds.compare(name, choice).low < 1 - MARGIN for name in names if name != choice)

    def select_survivors(self, remaining: Sequence[str]) -> list[str]:
        """Return the survivors of a visit: the best of `remaining`, and the model's choice until it is beaten."""
        eligible = self.eligible
        best = sorted((name for name in remaining if name in eligible), key=self.results.times.__getitem__)
        best = best[: self.effort.survivors]
        is_beaten = self.visits >= MIN_VISITS and any(map(self.is_proven, best))
        return best if is_beaten or not eligible or eligible[0] in best else [*best, eligible[0]]

    @property
    def is_open(self) -> bool:
        """Whether another visit is useful."""
        if self.visits < MIN_VISITS:
            return self.visits == 0 or len(self.survivors) > 1
        return self.visits < MAX_VISITS and len(self.survivors) > 1 and self.can_gain(self.survivors)

    def save(self, store: Store, *, provisional: bool = False) -> Row | None:
        """Store the results so far; return the best row, or None if every candidate was rejected.

        It may be called again with more results. `provisional` rows will be replaced; they do not replace decided ones.
        """
        blank = Row(fingerprint().key, self.key, "", "", "rejected", weights=self.weights)
        rows = self.results.rows(blank, self.candidates, self.workload, self.scores())
        stored = timed_rows(self.workload, self.key, store, self.weights)
        if not (provisional and any(row.state == DECIDED for row in stored)):
            state: State = PROVISIONAL if provisional else DECIDED
            kept = rows + [
                row._replace(sources=self.workload.sources_of(row.candidate)) for row in carried(stored, rows)
            ]
            store.put([row._replace(state=state) if row.is_timed else row for row in kept])
        timed = [row for row in rows if row.is_timed]
        return min(timed, key=lambda row: (row.score, row.estimate), default=None)

    def scores(self) -> dict[str, float]:
        """Return ranking scores in seconds: none of default accuracy ranks before the fastest proven survivor."""
        times = self.results.times
        eligible = [name for name in self.eligible if name in times]
        if not eligible:
            return dict(times)
        remaining = [name for name in (*self.survivors, eligible[0]) if name in times]
        first = min(filter(self.is_proven, remaining), key=times.__getitem__)
        least = math.nextafter(times[first], math.inf)
        return times | {name: max(times[name], least) for name in eligible if name != first}


def _is_late(deadline: float | None, ahead: float = 0.0) -> bool:
    """Whether `deadline`, by `time.monotonic()`, is before the end of work that takes `ahead` seconds."""
    return deadline is not None and time.monotonic() + ahead >= deadline


def _left(deadline: float | None, seconds: float) -> float:
    """Return `seconds`, or the time left until the deadline if that is less."""
    return seconds if deadline is None else min(seconds, max(0.0, deadline - time.monotonic()))
