"""Which candidate runs a problem: pinned by name, else the store's fastest, else the cost model's choice."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cpuconv.errors import ArgumentError, WorkspaceError, must
from cpuconv.isa import current
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate, reordered, workspace_bytes
from cpuconv.solvers import BY_NAME, TABLE, blocked
from cpuconv.solvers.base import Cost
from cpuconv.solvers.machine import machine

STRATEGIES = ("heuristic", "cached", "profile")
ACCURACIES = ("exact", "standard", "fast")
AUTO = "auto"
_CLEARLY = 1.02  # how much faster NCHW must be to be preferred to blocks, which the next layer reads as they are
_IN_THE_RUNNING = 2.0  # a solver's favourite is tried when the model is wrong by at most this much


@dataclass(frozen=True)
class Limits:
    """What a choice must keep to."""

    accuracy: str = "standard"
    workspace: int | None = None

    def admits_accuracy(self, accuracy: str) -> bool:
        """Whether a candidate of that class may run."""
        return ACCURACIES.index(accuracy) <= ACCURACIES.index(self.accuracy)


@dataclass(frozen=True)
class Ranked:
    """A candidate with the model's opinion; `reason` says why limits leave it out."""

    candidate: Candidate
    cost: Cost
    reason: str | None = None


@dataclass(frozen=True)
class Choice:
    """The candidate that runs, and what decided: "named", "store" or "model"."""

    candidate: Candidate
    decided_by: str


def check_options(strategy: object, accuracy: object, workspace_limit: object) -> None:
    """Raise `ArgumentError` for an unknown strategy or accuracy, or a limit that is no size in bytes."""
    for name, value, valid in (("strategy", strategy, STRATEGIES), ("accuracy", accuracy, ACCURACIES)):
        if not isinstance(value, str) or value not in valid:
            raise ArgumentError(must(name, f"one of {', '.join(valid)}", repr(value)))
    if workspace_limit is not None and (
        isinstance(workspace_limit, bool) or not hasattr(workspace_limit, "__index__") or workspace_limit < 0
    ):
        raise ArgumentError(must("workspace_limit", "None or a number of bytes, 0 or more", repr(workspace_limit)))


def applicable(problem: ConvProblem) -> Iterator[tuple[str, str | None]]:
    """Each solver's name with the reason it cannot run the problem, or None."""
    for solver in TABLE:
        yield solver.NAME, solver.applicable(problem, current())


def modelled_cost(problem: ConvProblem, candidate: Candidate) -> Cost:
    """The solver's own cost and that of the reorders around it."""
    here = machine()
    cost = candidate.solver.cost(problem, candidate.params, here)
    extra = 0.0
    for moved, size in zip(reordered(problem, candidate), (problem.in_bytes, problem.out_bytes), strict=True):
        if moved:
            extra += 2 * size / here.rate(2 * size) / (here.frequency * problem.threads)
    return Cost(cost.bound, cost.estimate + extra)


def ranking(problem: ConvProblem, solver: str | None = None) -> list[Ranked]:
    """All candidates (of one solver, if named), the model's favourite first."""
    found = [
        Ranked(candidate, modelled_cost(problem, candidate))
        for module in TABLE
        if solver in (None, module.NAME) and module.applicable(problem, current()) is None
        for candidate in (Candidate(module, params) for params in module.candidates(problem, current()))
    ]
    return sorted(found, key=lambda ranked: ranked.cost.estimate)


def spread(ranked: list[Ranked]) -> list[Ranked]:
    """In the model's order, but with the favourite of every solver in the running first.

    A tuner that stops early has then met every algorithm that may win, whatever the model thinks of its variants.
    """
    if not ranked:
        return []
    limit = _IN_THE_RUNNING * ranked[0].cost.estimate
    first: dict[str, Ranked] = {}
    for item in ranked:
        if item.cost.estimate <= limit:
            first.setdefault(item.candidate.solver.NAME, item)
    rest = [item for item in ranked if item is not first.get(item.candidate.solver.NAME)]
    return [*first.values(), *rest]


def limited(problem: ConvProblem, ranked: Ranked, limits: Limits) -> str | None:
    """Why the limits leave a candidate out, or None."""
    if not limits.admits_accuracy(ranked.candidate.accuracy):
        return f"its accuracy class is {ranked.candidate.accuracy}, more than {limits.accuracy} admits"
    if limits.workspace is not None:
        size = workspace_bytes(problem, ranked.candidate)
        if size > limits.workspace:
            return f"it needs {size} bytes of workspace, more than the limit of {limits.workspace}"
    return None


def by_model(problem: ConvProblem, limits: Limits, solver: str | None = None) -> Candidate:
    """The model's favourite within the limits.

    Raises
    ------
    WorkspaceError
        No candidate meets the workspace limit.
    """
    least = math.inf
    for ranked in ranking(problem, solver):
        if limited(problem, ranked, limits) is None:
            return ranked.candidate
        if limits.admits_accuracy(ranked.candidate.accuracy):
            least = min(least, workspace_bytes(problem, ranked.candidate))
    if least is math.inf:
        raise ArgumentError(must("accuracy", f"one that {solver} meets", repr(limits.accuracy)))
    raise WorkspaceError(must("workspace_limit", f"at least {least} bytes for this problem", limits.workspace))


def by_name(problem: ConvProblem, algorithm: str, limits: Limits) -> Candidate:
    """The candidate that `algorithm` names: a solver (the model picks parameters) or a whole candidate.

    Raises
    ------
    ArgumentError
        Unknown name, a solver that cannot run the problem (with its reason), or beyond the accuracy asked for.
    WorkspaceError
        It needs more workspace than the limit.
    """
    solver = algorithm.partition("(")[0] if isinstance(algorithm, str) else ""
    if solver not in BY_NAME:
        raise ArgumentError(must("algorithm", f"one of {', '.join(BY_NAME)}, or one with parameters", repr(algorithm)))
    reason = BY_NAME[solver].applicable(problem, current())
    if reason is not None:
        raise ArgumentError(must("algorithm", f"one that can run this problem ({solver}: {reason})", repr(algorithm)))
    if algorithm == solver:
        return by_model(problem, limits, solver)
    try:
        candidate = Candidate.parse(algorithm)
    except ValueError as error:
        raise ArgumentError(must("algorithm", f"a solver with its parameters ({error})", repr(algorithm))) from error
    known = [ranked.candidate for ranked in ranking(problem, solver)]
    if candidate not in known:
        names = ", ".join(map(str, known[:8]))
        raise ArgumentError(must("algorithm", f"a candidate of this problem, such as {names}", repr(algorithm)))
    if not limits.admits_accuracy(candidate.accuracy):
        raise ArgumentError(must("accuracy", f"one that {algorithm} meets", repr(limits.accuracy)))
    if limits.workspace is not None and (least := workspace_bytes(problem, candidate)) > limits.workspace:
        raise WorkspaceError(must("workspace_limit", f"at least {least} bytes for {algorithm}", limits.workspace))
    return candidate


_memory: dict[tuple, Choice] = {}
_lock = threading.Lock()


def forget() -> None:
    """Drop remembered choices: the store has changed."""
    with _lock:
        _memory.clear()


def choose(problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None = None) -> Choice:
    """The candidate for a problem; remembered per process."""
    key = (problem, strategy, limits, algorithm)
    choice = _memory.get(key)
    if choice is None:
        choice = _choose(problem, strategy, limits, algorithm)
        with _lock:
            _memory[key] = choice
    return choice


def _choose(problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None) -> Choice:
    if algorithm is not None:
        return Choice(by_name(problem, algorithm, limits), "named")
    if strategy != "heuristic":
        from cpuconv import tuned  # the store is opened only by those who ask for it

        found = tuned.lookup(problem, limits)
        if found is None and strategy == "profile" and problem.n:
            tuned.profile(problem)
            found = tuned.lookup(problem, limits, read_only=False)
        if found is not None:
            return Choice(found, "store")
    return Choice(by_model(problem, limits), "model")


def resolve_layouts(problem: ConvProblem, in_layout: str, out_layout: str, limits: Limits) -> ConvProblem:
    """The problem with `auto` layouts replaced: channel blocks, or NCHW where the model finds it clearly faster."""
    favourites = (blocked.layout(current()), "NCHW")
    options = [
        replace(problem, in_layout=first, out_layout=second)
        for first in (favourites if in_layout == AUTO else (in_layout,))
        for second in (favourites if out_layout == AUTO else (out_layout,))
    ]

    def estimate(option: ConvProblem) -> float:
        planes = (option.in_layout, option.out_layout).count("NCHW")
        best = next((r.cost.estimate for r in ranking(option) if limited(option, r, limits) is None), math.inf)
        return best * _CLEARLY**planes

    return options[0] if len(options) == 1 else min(options, key=estimate)
