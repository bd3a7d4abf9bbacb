"""Tuning many problems: the most valuable first, compiled in workers, timed one at a time in this process.

Batches of problems alternate between the two, so that nothing compiles while something is timed,
and an interrupt finds most of the work in the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autotune.device import allowed_cores, fingerprint
from autotune.measure import EFFORTS
from autotune.progress import Listener, Pace
from autotune.search import Compiled, choose, compile_here, tune
from autotune.store import Row, Store
from autotune.worker import Pool, Task
from autotune.workload import Candidate, Problem, Workload

BATCH = 12  # problems compiled together
COMPILE_SECONDS = 60.0  # that one candidate may take
COMPILE_SHARE = 0.6  # of what is left of a budget, that the next compiles may use
LEAST_SHARE = 0.25  # of an effort's seconds, that a problem gets however small the budget


@dataclass
class Outcome:
    """What became of each problem, by key: tuned (with its best row), finished before, failed, or left for another
    time."""

    tuned: dict[str, Row] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def warmup(
    workload: Workload,
    problems: Iterable[Problem],
    store: Store,
    effort: str = "quick",
    budget: float | None = None,
    progress: Listener = lambda state: None,
    *,
    spec: str | None = None,
    threads: int = 1,
    layouts: str = "",
    compile_seconds: float = COMPILE_SECONDS,
    outcome: Outcome | None = None,
) -> Outcome:
    """Tune problems and store what is found; those finished with this effort or a greater one are passed over.

    Arguments:
        effort: a key of `EFFORTS`.  budget: seconds for everything, None for as long as it takes.
        spec: "module:attribute" by which workers find the workload; None compiles in this process.
        threads, layouts: that the problems are for, kept with them.  compile_seconds: after which a worker is killed.
        outcome: filled as the work goes on, for a caller that expects to be interrupted.

    Raises:
        ValueError: an unknown effort.  WorkerError: the workers do not start.
        KeyboardInterrupt: with what was finished in the store, and no worker left.
    """
    if effort not in EFFORTS:
        raise ValueError(f"Argument 'effort' must be one of {', '.join(EFFORTS)}, not {effort!r}.")
    deadline = None if budget is None else time.monotonic() + budget
    outcome = Outcome() if outcome is None else outcome
    problems = list(problems)
    store.register(fingerprint())
    store.note(problems, threads=threads, layouts=layouts)
    pending = _pending(workload, problems, store, effort, outcome)
    if pending:
        outcome.left = [problem.key for problem in pending]
        workers = allowed_cores()
        pace = Pace(len(pending), EFFORTS[effort].candidates, EFFORTS[effort].seconds, workers, progress)
        with Pool(spec or "", workers=workers, limit=compile_seconds) as pool:
            _Warmup(workload, store, effort, deadline, threads, pool if spec else None, pace, outcome).run(pending)
    return outcome


def _pending(
    workload: Workload, problems: Sequence[Problem], store: Store, effort: str, outcome: Outcome
) -> list[Problem]:
    """Each problem still to tune, once, those that cost their networks most first."""
    efforts = list(EFFORTS)[list(EFFORTS).index(effort) :]
    weights: dict[str, float] = {}
    for problem in problems:
        weights[problem.key] = weights.get(problem.key, 0.0) + problem.count * problem.flops
    pending = []
    for problem in {problem.key: problem for problem in problems}.values():
        if store.is_finished(fingerprint().key, problem.key, efforts=efforts, sources=workload.sources):
            outcome.resumed.append(problem.key)
        else:
            pending.append(problem)
    return sorted(pending, key=lambda problem: -weights[problem.key])


@dataclass
class _Warmup:
    workload: Workload
    store: Store
    effort: str
    deadline: float | None
    threads: int
    pool: Pool | None
    pace: Pace
    outcome: Outcome

    def run(self, pending: Sequence[Problem]) -> None:
        for start in range(0, len(pending), BATCH):
            batch = pending[start : start + BATCH]
            chosen = {problem.key: choose(self.workload, problem.key, self.store, self.effort) for problem in batch}
            compiled = self.compile([(key, candidate.name) for key, group in chosen.items() for candidate in group])
            for problem in batch:
                if self.left() <= 0.0:
                    return
                known = {name: reason for (key, name), reason in compiled.items() if key == problem.key}
                # Without a single one the budget ended before its turn; without candidates nothing can be done.
                if known or not chosen[problem.key]:
                    self.time(problem, chosen[problem.key], known)

    def compile(self, tasks: Sequence[Task]) -> dict[Task, str]:
        self.pace.compiling(len({key for key, _ in tasks}), len(tasks))
        if self.pool is None:
            return {task: compile_here(self.workload, *task) for task in tasks}
        deadline = None if self.deadline is None else time.monotonic() + COMPILE_SHARE * max(0.0, self.left())
        return self.pool.run(tasks, deadline=deadline, done=lambda task: self.pace.did_compile())

    def time(self, problem: Problem, candidates: list[Candidate], compiled: Compiled) -> None:
        begun = time.monotonic()
        self.pace.tell("time", problem.label)
        best = tune(
            self.workload,
            problem.key,
            candidates,
            compiled,
            self.store,
            effort=EFFORTS[self.effort],
            deadline=None if self.deadline is None else begun + self.share(),
            watch=lambda seconds: self.pace.tell("time", problem.label, problem.flops / seconds * 1e-9),
        )
        if len(compiled) == len(candidates):
            self.store.finish(
                fingerprint().key, problem.key, effort=self.effort, sources=self.workload.sources, threads=self.threads
            )
        self.outcome.left.remove(problem.key)
        if best is None:
            self.outcome.failed.append(problem.key)
        else:
            self.outcome.tuned[problem.key] = best
        gflops = problem.flops / best.median * 1e-9 if best else 0.0
        self.pace.did_time(problem.label, gflops, time.monotonic() - begun)

    def left(self) -> float:
        """Seconds of the budget."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def share(self) -> float:
        """Seconds for the next problem: an even share of what compiling leaves, but enough to be of use."""
        least = LEAST_SHARE * EFFORTS[self.effort].seconds
        even = (self.left() - self.pace.compile_left()) / max(1, self.pace.problems - self.pace.done)
        return min(self.left(), max(even, least))
