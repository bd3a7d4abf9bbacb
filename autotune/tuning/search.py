"""Finding the fastest candidate of a problem: all are checked and race, the best are timed again until it is clear."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autotune.machine.device import fingerprint
from autotune.store.rows import COLD, DECIDED, PROVISIONAL, WARM, carried
from autotune.store.store import Row, Store
from autotune.timing.measure import (
    EFFORTS,
    JUDGED,
    SETTLED,
    Effort,
    Entrant,
    Race,
    calibrate,
    interval,
    is_faster,
    median_and_spread,
    pseudomedian,
    race,
    stay,
)
from autotune.timing.measure import Run as Loop
from autotune.tuning.candidates import Timed, promising, ruled_out, timed_rows
from autotune.tuning.findings import Findings
from autotune.tuning.worker import compile_here, describe
from autotune.workload import ADMITS, Candidate, Verdict, Workload, check

HEAT = {WARM: 12, COLD: 6}  # candidates bound to data at once: each holds its packed weights, cold ones a cache's worth
RACE_SHARE = 0.4  # of a problem's seconds, for the race; getting candidates ready takes some, turns have the rest
TURN_SHARE = 0.1  # and of these a turn of timing the best again, unless getting them ready took longer …
WAITING = 1.5  # … or enough rounds take longer, with half as much time to wait for the machine's best
PATIENCE_SHARE = 0.2  # of a problem's seconds, that the race and turns may take longer to have it
TURN_ROUNDS = 32
TURNS = 10  # at most, one after another
AGREED = 2  # turns that a decision takes, unless all but one are known to be far behind
FAR = 1.15  # who is further behind in the race is not timed again: one moment against another is worth so much …
NOISY = 3.0  # … unless by less than so many spreads of the winner's samples
CLOSE = 1.04  # who then is known to be further behind leaves
NEAR = 0.02  # nobody is timed again to gain no more
ACCURACY = "standard"  # what the best are timed again for: what a caller asks for who asks for nothing

Tried = Mapping[str, Verdict]  # by name of a candidate: what came of trying it out
Watch = Callable[[float], None]  # told the best seconds so far


def settle(
    searches: Sequence[Search],
    until: float,
    deadline: float | None = None,
    entered: Callable[[Search], object] = lambda search: None,
    turns: int = TURNS,
) -> None:
    """Time the best of each problem again until it is decided, the problems in turn, so that no moment decides.

    Arguments:
        until: of `time.monotonic()`, past which each problem still has its first turn, but nobody another.
        deadline: past which nobody has one.  entered: told whose turn it is.  turns: at most, each.
    """
    for _ in range(turns):
        for search in [search for search in searches if not search.is_decided]:
            late = _is_late(until) and bool(search.turns)
            if late or _is_late(deadline, search.entry * len(search.finalists)):
                return
            entered(search)
            search.again(deadline)


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
    chosen = promising(admitted, effort)
    tried = {candidate.name: compile_here(workload, key, candidate.name) for candidate in chosen}
    store.register(fingerprint())
    search = Search(workload, key, chosen, tried, effort=EFFORTS[effort])
    begun = time.monotonic()
    search.race()
    settle([search], begun + EFFORTS[effort].seconds)
    return search.save(store)


class Search:
    """The timing of one problem: all candidates `race`; then the best are timed `again`, each time on data prepared
    afresh and preferably at another moment, until it `is_decided` who wins."""

    def __init__(
        self,
        workload: Workload,
        key: str,
        candidates: list[Candidate],
        tried: Tried,
        *,
        effort: Effort,
        regime: str = WARM,
        watch: Watch = lambda seconds: None,
    ) -> None:
        """candidates: the model's choice first, which ties go to.  tried: what came of those that were compiled; others
        are left alone."""
        self.workload, self.key, self.candidates = workload, key, candidates
        self.effort, self.regime, self.watch = effort, regime, watch
        self.findings = Findings(verdicts=dict(tried))
        self.heats: list[Race] = []
        self.turns: list[Race] = []  # of the finalists
        self.finalists: list[str] = []
        self.beaten: set[str] = set()  # finalists that were found to be far behind
        self.cost = 0.0  # seconds of a round of the finalists
        self.entry = 0.0  # seconds that getting a candidate ready takes, at most
        self._calibrated: dict[str, Entrant] = {}
        self._rng = random.Random(key)

    def race(self, deadline: float | None = None) -> None:
        """Race all that are ready, a heat at a time with the last winner among them.

        Arguments:
            deadline: of `time.monotonic()`, past which no further candidate is begun.
        """
        verdicts = self.findings.verdicts
        waiting = [each for each in self.candidates if each.name in verdicts and not verdicts[each.name].reason]
        share = self.effort.seconds * RACE_SHARE / max(1, len(waiting))
        leader: dict[str, Entrant] = {}
        while waiting and not _is_late(deadline, self.entry if leader else 0.0):
            heat = dict(leader)
            while waiting and len(heat) < HEAT[self.regime] and not (heat and _is_late(deadline, self.entry)):
                candidate = waiting.pop(0)
                if (entrant := self.enter(candidate)) is not None:
                    heat[candidate.name] = entrant
            if len(heat) > len(leader):
                seconds = _left(deadline, share * len(heat))
                result = race(
                    heat,
                    rounds=self.effort.rounds,
                    seconds=seconds,
                    rng=self._rng,
                    reference=self.reference(),
                    roam=self.is_single,
                    patience=self.patience(deadline, seconds),
                )
                self.rank(result, *leader)
                leader = {result.winner: heat[result.winner]}
                self.watch(min(self.findings.times.values()))
        self.nominate()

    @property
    def is_single(self) -> bool:
        """Whether the problem is for one thread."""
        return self.workload.with_threads(self.key, 1) == self.key

    def patience(self, deadline: float | None, seconds: float) -> float:
        """Seconds that what takes so many may take longer."""
        return _left(deadline, seconds + PATIENCE_SHARE * self.effort.seconds) - seconds

    def reference(self) -> Loop | None:
        """The loop that tells whether the machine's speed changed, if it can be had."""
        try:
            return self.workload.reference(self.key)
        except Exception:  # rounds are then judged without
            return None

    def enter(self, candidate: Candidate) -> Entrant | None:
        """The candidate ready to run, once its output is known to be right; else None and the reason is noted."""
        findings, name = self.findings, candidate.name
        if (better := ruled_out(candidate, findings.known.values())) is not None:
            bound, best = candidate.bound * 1e6, better.seconds * 1e6
            findings.reject(name, f"pruned: it cannot take less than {bound:.1f} µs, another takes {best:.1f} µs")
            return None
        entrant = self.ready(name, candidate.bound)
        if entrant is not None:
            findings.known[name] = Timed(candidate.accuracy, candidate.workspace, entrant.seconds)
        return entrant

    def ready(self, name: str, bound: float = 0.0) -> Entrant | None:
        """The candidate bound to data of its own; None if it fails or is wrong, with the reason noted."""
        findings, begun = self.findings, time.monotonic()
        try:
            trial = self.workload.prepare(self.key, name, self.regime)
            if math.isnan(findings.verdicts[name].limit):  # no worker has run it
                findings.verdicts[name] = check(trial)
                if findings.verdicts[name].reason:
                    return None
            if (known := self._calibrated.get(name)) is None:
                known = calibrate(trial.run, bound, trial.move)
                self._calibrated[name] = replace(known, run=stay, move=stay)  # holds no data
            return replace(known, run=trial.run, move=trial.move)
        except Exception as failure:
            findings.reject(name, f"run: {describe(failure)}")
            return None
        finally:
            self.entry = max(self.entry, time.monotonic() - begun)

    def rank(self, result: Race, leader: str | None = None) -> None:
        """Add a heat."""
        self.heats.append(result)
        self.findings.add(result, leader)

    @property
    def model(self) -> str:
        """The model's choice of those that run, "" if none does."""
        return next((each.name for each in self.candidates if each.name in self.findings.times), "")

    @property
    def served(self) -> list[str]:
        """Who serves a caller who asks for nothing, fastest first."""
        times = self.findings.times
        names = [c.name for c in self.candidates if c.accuracy in ADMITS[ACCURACY] and c.name in times]
        return sorted(names or [*filter(None, [self.model])], key=times.__getitem__)

    def nominate(self) -> None:
        """Choose whom to time again: the best and the model's choice."""
        times, served = self.findings.times, self.served
        if not served:
            return
        middle, spread = median_and_spread(self.findings.samples[served[0]])
        behind = max(FAR, 1 + NOISY * spread / middle)
        best = [name for name in served if times[name] <= behind * times[served[0]]]
        self.finalists = list(dict.fromkeys([*best[: self.effort.finalists], self.model]))

    @property
    def is_decided(self) -> bool:
        """Whether timing the finalists again is of no use."""
        if len(self.finalists) < 2:
            return True
        if self.is_doubtful:
            return False
        leader = self.best
        choice = leader if self.is_proven(leader) or self.model not in self.finalists else self.model
        others = [name for name in self.finalists if name != choice]
        return len(self.counted) >= AGREED and all(
            interval(self.ratios(name, choice))[0] >= 1 - NEAR for name in others
        )

    def is_proven(self, leader: str) -> bool:
        """Whether it may rank before the model's choice."""
        model, times = self.model, self.findings.times
        if not self.turns and times[model] > FAR * times[leader]:  # all that one moment can tell, in however few rounds
            return True
        return leader == model or model in self.beaten or is_faster(self.evidence(model, leader))

    @property
    def is_doubtful(self) -> bool:
        """Whether the machine was below its best in the turns, and finalists are so short that its best can be had."""
        is_short = self.cost * SETTLED <= TURN_SHARE * self.effort.seconds
        return is_short and sum(turn.full for turn in self.turns) < SETTLED

    @property
    def counted(self) -> list[Race]:
        """The turns, with no more than their rounds at the machine's best if there are enough of those."""
        if sum(turn.full for turn in self.turns) < SETTLED:
            return self.turns
        return [Race(turn.standing, kept=[each for each in turn.kept if each.full]) for turn in self.turns if turn.full]

    def again(self, deadline: float | None = None) -> None:
        """Rounds of the finalists on data prepared afresh; who is then known to be far behind is none any more."""
        begun = time.monotonic()
        entrants = {name: entrant for name in self.finalists if (entrant := self.ready(name)) is not None}
        self.finalists = list(entrants)
        if len(entrants) < 2:
            return
        self.cost = sum(entrant.cost for entrant in entrants.values())
        seconds = max(self.effort.seconds * TURN_SHARE, time.monotonic() - begun, WAITING * SETTLED * self.cost)
        seconds = _left(deadline, seconds)
        least = 0 if _is_late(deadline) else JUDGED
        result = race(
            entrants,
            rounds=TURN_ROUNDS,
            seconds=seconds,
            rng=self._rng,
            least=least,
            drop=False,
            reference=self.reference(),
            roam=self.is_single,
            patience=self.patience(deadline, seconds),
        )
        if result.rounds:
            self.turns.append(result)
        if result.rounds and not self.is_doubtful:
            best = self.best
            self.beaten |= {name for name in self.finalists if self.is_far(name, best)}
            self.finalists = [name for name in self.finalists if name not in self.beaten]

    def is_far(self, name: str, best: str) -> bool:
        """Whether it is known to be far behind: in all rounds of the turns, and in more than one moment."""
        moments = [found for each in self.heats + self.turns if (found := each.ratios(name, best))]
        far = sum(statistics.median(found) >= CLOSE for found in moments)
        return far >= AGREED and interval(self.ratios(name, best))[0] >= CLOSE

    @property
    def best(self) -> str:
        """The fastest of the finalists."""
        first = self.finalists[0]
        return min(self.finalists, key=lambda name: self.relative(name, first))

    def ratios(self, name: str, to: str) -> list[float]:
        """Time of one finalist over another's, in all rounds of the turns that both ran in."""
        return [ratio for turn in self.counted for ratio in turn.ratios(name, to)]

    def relative(self, name: str, to: str) -> float:
        """The mean of the turns' middles of that, as each turn is a moment."""
        middles = [pseudomedian(ratios) for turn in self.counted if (ratios := turn.ratios(name, to))]
        return statistics.geometric_mean(middles) if middles else 1.0

    def save(self, store: Store, *, provisional: bool = False) -> Row | None:
        """Store what was found; returns the best row, or None if every candidate was rejected. Again, if more is known
        since.

        Arguments:
            provisional: whether more is to come; what was decided before then stays as it is.
        """
        self.decide()
        blank = Row(fingerprint().key, self.key, "", "", "rejected", regime=self.regime)
        turns = Race([], kept=[each for turn in self.counted for each in turn.kept])
        rows = self.findings.rows(blank, self.candidates, self.workload.sources_of, turns.samples)
        stored = timed_rows(self.workload, self.key, store, self.regime)
        if not (provisional and any(row.state == DECIDED for row in stored)):
            state = PROVISIONAL if provisional else DECIDED
            found = rows + carried(stored, rows)
            store.put([row._replace(state=state) if row.is_timed else row for row in found])
        timed = [row for row in rows if row.is_timed]
        return min(timed, key=lambda row: (row.score, row.estimate), default=None)

    def decide(self) -> None:
        """Rank by the turns who was in them. Unless one wins clearly, nothing ranks before the model's choice."""
        findings, model = self.findings, self.model
        if not (served := self.served):
            return
        times, leader = findings.times, served[0]
        if self.turns and self.finalists:
            leader = self.best
            level = next(times[name] * self.relative(leader, name) for name in served if self.ratios(leader, name))
            for name in times:
                if self.ratios(name, leader):
                    times[name] = level * self.relative(name, leader)
        behind = math.nextafter(times[leader], math.inf)  # medians of ratios can go round in a circle
        findings.scores = times | {name: max(times[name], behind) for name in served if name != leader}
        if not self.is_proven(leader):
            behind = math.nextafter(findings.scores[model], math.inf)
            for name in {*served} - {model}:
                findings.scores[name] = max(findings.scores[name], behind)

    def evidence(self, name: str, to: str) -> list[float]:
        """Time of one over another's in rounds that both ran in: of the turns that count, of all, or with the heats, so
        that they are enough to tell."""
        ratios: list[float] = []
        for races in (self.counted, self.turns, self.turns + self.heats):
            ratios = [ratio for each in races for ratio in each.ratios(name, to)]
            if len(ratios) >= SETTLED:
                break
        return ratios


def _is_late(deadline: float | None, ahead: float = 0.0) -> bool:
    """Whether the deadline, of `time.monotonic()`, comes before something that takes so many seconds is done."""
    return deadline is not None and time.monotonic() + ahead >= deadline


def _left(deadline: float | None, seconds: float) -> float:
    """`seconds`, or what the deadline leaves of them."""
    return seconds if deadline is None else min(seconds, max(0.0, deadline - time.monotonic()))
