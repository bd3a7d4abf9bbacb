"""Tuning of many problems: the most valuable first, with trial runs in workers and timing in this process.

Each batch of problems is first compiled, then timed, so that nothing compiles while something is timed. Each problem is
stored as provisional after its first visit, so that an interrupted warmup leaves most results in the store. Batches
start small, so that results are stored early, and grow, so that workers seldom wait. Problems that are undecided when
their batch is stored stay open, and use the time that others leave.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from autotune.machine.device import fingerprint
from autotune.store.store import Row, Store
from autotune.tuning.candidates import choose
from autotune.tuning.confirm import is_finished
from autotune.tuning.effort import EFFORTS
from autotune.tuning.progress import Listener, ProgressEstimate
from autotune.tuning.search import Search, Tried, decide_all
from autotune.tuning.threads import compare
from autotune.tuning.worker import Pool, Task, Workers, compile_here
from autotune.workload import Candidate, Problem, Verdict, Workload
from baselib.data_classes import dataclass

FIRST_BATCH = 4  # problems, visited in turn to spread each over time; each batch is twice as large as the one before
BATCH_SECONDS = 30.0  # max. effort seconds of the problems in one batch
COMPILE_SHARE = 0.6  # max. share of the remaining time for the next compilations
MIN_SHARE = 0.25  # min. share of an effort's seconds per problem, however small the budget
ORDER_SHARE = 0.05  # max. share of a budget for ordering problems by value


@dataclass
class Outcome:
    """The outcome of each problem, by `Problem.task`.

    Problems are tuned (with their best row), resumed (finished before or by another process), failed, or left for
    another time. `elsewhere` are those of the left ones that another process is tuning.
    """

    tuned: dict[str, Row] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


def warmup(
    workload: Workload,
    problems: Iterable[Problem],
    store: Store,
    effort: str = "quick",
    budget: float | None = None,
    progress: Listener = lambda state: None,
    *,
    workers: Workers | None = None,
    layouts: str = "",
    shape_limit: float | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Tune problems and store the results; skip those finished with this effort or a greater one.

    Problems that differ only in their threads are compared with one another when all of them are tuned.

    Parameters
    ----------
    effort : str
        A key of `EFFORTS`.
    budget : float or None
        Time limit in seconds; None: unlimited.
    progress : callable
        Called with each state of progress.
    workers : Workers or None
        Processes for trial runs; None: candidates are compiled in this process.
    layouts : str
        The layouts of the problems; stored with them.
    shape_limit : float or None
        Time limit per problem in seconds, without the start of workers. A problem with untried candidates is stored,
        and continued by the next warmup.
    outcome : Outcome or None
        Updated during the work, for a caller that expects interrupts.

    Raises
    ------
    ValueError
        An unknown effort.
    WorkerError
        The workers do not start.
    KeyboardInterrupt
        Finished results are in the store then, and all workers have ended.
    """
    if effort not in EFFORTS:
        raise ValueError(f"Argument 'effort' must be one of {', '.join(EFFORTS)}, not {effort!r}.")
    deadline = None if budget is None else time.monotonic() + budget
    outcome = Outcome() if outcome is None else outcome
    problems = list(problems)
    store.register(fingerprint())
    for threads in sorted({problem.threads for problem in problems}):
        store.note([each for each in problems if each.threads == threads], threads=threads, layouts=layouts)
    unique = {problem.task: problem for problem in problems}.values()
    pending = [problem for problem in unique if not is_finished(workload, problem, store, effort)]
    outcome.left = [problem.task for problem in pending]
    outcome.resumed = [problem.task for problem in unique if problem.task not in set(outcome.left)]
    if pending:
        families: dict[Family, list[Problem]] = {}
        for problem in unique:
            families.setdefault(_family(workload, problem), []).append(problem)
        pending = _by_value(workload, problems, pending, effort, budget)
        asked = workers or Workers("")
        estimate = ProgressEstimate(len(pending), EFFORTS[effort], asked.count, progress)
        with Pool(asked) as pool:
            tried_by = pool if workers else None
            work = _Warmup(workload, store, effort, deadline, shape_limit, tried_by, estimate, outcome, families)
            work.run(pending)
    return outcome


Family = tuple[str, str]  # key for one thread, weights


def _family(workload: Workload, problem: Problem) -> Family:
    """Return the key that problems share if they differ only in their threads."""
    return workload.with_threads(problem.key, 1), problem.weights


def _by_value(
    workload: Workload,
    asked: Sequence[Problem],
    pending: Sequence[Problem],
    effort: str,
    budget: float | None,
) -> list[Problem]:
    """Sort problems by their time in the networks, by count and the model's estimate; families stay together.

    With a budget and many problems, only some are estimated; the others are ranked by flops.
    """
    deadline = None if budget is None else time.monotonic() + ORDER_SHARE * budget
    counts: dict[str, int] = {}
    for problem in asked:
        counts[problem.task] = counts.get(problem.task, 0) + problem.count
    seconds: dict[str, float] = {}
    for problem in sorted(pending, key=lambda problem: -counts[problem.task] * problem.flops):
        if deadline is not None and time.monotonic() >= deadline:
            break
        candidates, _ = workload.candidates(problem.key, effort)
        seconds[problem.task] = min((candidate.estimate for candidate in candidates), default=0.0)
    known = [problem for problem in pending if seconds.get(problem.task)]
    flops = sum(problem.flops for problem in known)
    per_flop = sum(seconds[problem.task] for problem in known) / flops if flops else 1.0
    families = {problem.task: _family(workload, problem) for problem in pending}
    values: dict[Family, float] = {}
    for problem in pending:
        value = counts[problem.task] * seconds.get(problem.task, problem.flops * per_flop)
        values[families[problem.task]] = max(value, values.get(families[problem.task], 0.0))
    return sorted(pending, key=lambda problem: (-values[families[problem.task]], families[problem.task]))


@dataclass(frozen=True)
class _Timing:
    """A problem's search, and whether it includes all candidates chosen for it."""

    problem: Problem
    search: Search
    is_whole: bool


@dataclass
class _Warmup:
    workload: Workload
    store: Store
    effort: str
    deadline: float | None
    shape_limit: float | None
    pool: Pool | None
    progress: ProgressEstimate
    outcome: Outcome
    families: dict[Family, list[Problem]]
    open: list[_Timing] = field(default_factory=list)  # stored but undecided
    credit: float = 0.0  # allotted time of problems that was not used, in seconds

    def run(self, pending: Sequence[Problem]) -> None:
        """Tune all problems; those that another process is tuning come last, unless it has finished them."""
        largest = max(1, int(BATCH_SECONDS / EFFORTS[self.effort].seconds))
        if self.shape_limit is not None:
            largest = 1
            if self.pool is not None:
                self.pool.start()
        elsewhere: list[Problem] = []
        start, size = 0, min(FIRST_BATCH, largest)
        while start < len(pending) and self.left() > 0.0:
            elsewhere += self.run_batch(pending[start : start + size])
            start, size = start + size, min(2 * size, largest)
        for problem in elsewhere:
            if self.left() > 0.0:
                self.outcome.elsewhere += [each.task for each in self.run_batch([problem])]

    def run_batch(self, batch: Sequence[Problem]) -> list[Problem]:
        """Tune problems together; return those that another process is tuning."""
        with contextlib.ExitStack() as claims:
            mine = [problem for problem in batch if claims.enter_context(self.claimed(problem))]
            limit = None if self.shape_limit is None else time.monotonic() + self.shape_limit
            todo = [problem for problem in mine if not self._is_finished(problem)]
            chosen: dict[str, list[Candidate]] = {}
            for each in todo:
                if self.left() > 0.0:
                    chosen[each.task] = choose(self.workload, each.key, self.store, self.effort, each.weights)
            tasks = [(each.key, candidate.name) for each in todo for candidate in chosen.get(each.task, ())]
            tried = self.try_out(tasks, limit)
            ready: list[_Timing] = []
            for problem in todo:
                known = {name: verdict for (key, name), verdict in tried.items() if key == problem.key}
                # Without any result, the budget ended before its turn; without candidates, nothing can be done.
                if problem.task in chosen and (known or not chosen[problem.task]):
                    ready.append(self.timing(problem, chosen[problem.task], known))
            if ready:
                self.time(ready, limit)
        return [problem for problem in batch if problem not in mine]

    @contextlib.contextmanager
    def claimed(self, problem: Problem) -> Iterator[bool]:
        """Claim a problem for the context; yields False if another process is tuning it."""
        claim = fingerprint().key, problem.key, problem.weights
        mine = self.store.claim(*claim)
        try:
            yield mine
        finally:
            if mine:
                self.store.release(*claim)

    def _is_finished(self, problem: Problem) -> bool:
        """Whether another process has finished the problem since this one began; records it."""
        found = is_finished(self.workload, problem, self.store, self.effort)
        if found:
            self.outcome.left.remove(problem.task)
            self.outcome.resumed.append(problem.task)
            self.progress.skip()
        return found

    def try_out(self, tasks: Sequence[Task], limit: float | None) -> dict[Task, Verdict]:
        self.progress.compiling(len({key for key, _ in tasks}), len(tasks))
        now = time.monotonic()
        ends = [now + COMPILE_SHARE * max(0.0, end - now) for end in (self.deadline, limit) if end is not None]
        deadline = min(ends, default=None)
        if self.pool is not None:
            return self.pool.run(tasks, deadline=deadline, done=lambda task: self.progress.did_compile())
        tried: dict[Task, Verdict] = {}
        for task in dict.fromkeys(tasks):
            if deadline is not None and time.monotonic() >= deadline:
                break
            tried[task] = compile_here(self.workload, *task)
            self.progress.did_compile()
        return tried

    def timing(self, problem: Problem, candidates: list[Candidate], tried: Tried) -> _Timing:
        def watch(seconds: float) -> None:
            self.progress.tell("time", problem.label, problem.flops / seconds * 1e-9)

        effort = EFFORTS[self.effort]
        effort = replace(effort, seconds=min(effort.seconds, self.share()))
        search = Search(
            self.workload, problem.key, candidates, tried, effort=effort, weights=problem.weights, watch=watch
        )
        return _Timing(problem, search, is_whole=len(tried) == len(candidates))

    def time(self, batch: Sequence[_Timing], limit: float | None) -> None:
        """Visit the problems of a batch and the open ones until all are decided or time is up; store the batch.

        After an interrupt, unfinished problems are stored as provisional, with all results so far.
        """
        earlier = {each.search: each for each in self.open}
        timings = {each.search: each for each in batch} | earlier
        unfinished, refined, begun = [*batch], set(), time.monotonic()
        self.credit += sum(each.search.effort.seconds for each in batch)
        self.progress.timing()
        deadline = min((end for end in (self.deadline, limit) if end is not None), default=None)

        def ended(search: Search) -> None:
            if search in earlier:
                refined.add(search)
            elif search.visits == 1:
                search.save(self.store, provisional=True)

        try:
            decide_all(
                [*timings],
                begun + self.credit,
                deadline,
                lambda search: self.progress.tell("time", timings[search].problem.label),
                ended,
            )
            spent = time.monotonic() - begun
            self.credit -= spent
            while unfinished:
                if (each := unfinished.pop(0)).search.visits:
                    self.finish(each, spent / len(batch))
        finally:
            for each in unfinished:
                if each.search.visits:
                    each.search.save(self.store, provisional=True)
            for search in refined:
                self.note(earlier[search].problem, search.save(self.store))
        self.open = [each for search, each in timings.items() if limit is None and search.visits and search.is_open]

    def finish(self, timing: _Timing, seconds: float) -> None:
        """Store the results of a problem that took `seconds`, and mark it as finished."""
        problem = timing.problem
        best = timing.search.save(self.store)
        if timing.is_whole:
            self.store.finish(
                fingerprint().key,
                problem.key,
                effort=self.effort,
                sources=self.workload.sources,
                threads=problem.threads,
                weights=problem.weights,
            )
        self.outcome.left.remove(problem.task)
        self.note(problem, best)
        gflops = problem.flops / best.median * 1e-9 if best else 0.0
        self.progress.did_time(problem.label, gflops, seconds)

    def note(self, problem: Problem, best: Row | None) -> None:
        """Record the outcome of a problem, and compare its numbers of threads."""
        if best is None:
            self.outcome.failed.append(problem.task)
        else:
            self.outcome.tuned[problem.task] = best
            self.compare_threads(problem)

    def compare_threads(self, problem: Problem) -> None:
        """Compare a problem's numbers of threads once all of them are tuned."""
        family = self.families[_family(self.workload, problem)]
        if len(family) > 1 and self.left() > 0.0 and not {each.task for each in family} & {*self.outcome.left}:
            compare(self.workload, {each.threads: each.key for each in family}, self.store, problem.weights)

    def left(self) -> float:
        """Return the remaining time of the budget, in seconds."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def share(self) -> float:
        """Return the seconds for the next problem: an even share of the time left by compiling, with a minimum."""
        least = MIN_SHARE * EFFORTS[self.effort].seconds
        even = (self.left() - self.progress.compile_left()) / max(1, self.progress.problems - self.progress.done)
        return min(self.left(), max(even, least))
