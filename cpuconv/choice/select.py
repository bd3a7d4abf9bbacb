"""Which candidate runs a problem: pinned by name, else the store's fastest, else the cost model's choice."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from autotune import workload
from autotune.machine.cores import thread_counts
from autotune.wisdom.tiers import OLDER
from cpuconv.errors import ArgumentError, WorkspaceError, must
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import Candidate, effective_threads, workspace_bytes
from cpuconv.solvers import BY_NAME, TABLE
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.base import Cost
from cpuconv.solvers.shared.machine import Machine, machine
from cpuconv.solvers.shared.packing import Packing

STRATEGIES = ("heuristic", "cached", "profile")
ACCURACIES = ("exact", "standard", "fast")
AUTO = "auto"
_CLEARLY = 1.02  # how much faster NCHW must be to be preferred to blocks, which the next layer reads as they are
_MODELLED = ("neighbour", "model")  # what decides where nothing is stored
_UNTUNED = (OLDER, *_MODELLED)  # where nothing current is
_MOST_REMEMBERED = 4096  # choices: a server may meet any number of shapes
_MOST_COSTED = 32  # lists of candidates: the questions about one problem that follow one another find theirs
_HARDLY = 1.03  # how much slower a candidate may be whose packed weights exist
_IN_THE_RUNNING = 1.5  # a favourite is tried when the model finds it slower than its choice by at most this much


@dataclass(frozen=True)
class Limits:
    """What a choice must keep to."""

    accuracy: str = "standard"
    workspace: int | None = None
    reproducible: bool = False  # the same bits whatever the number of threads

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
    """The candidate that runs, and what decided: "named", "pinned", "store", "shipped", "older kernels", "neighbour" or
    "model"."""

    candidate: Candidate
    decided_by: str


def check_options(strategy: object, accuracy: object, workspace_limit: object, reproducible: object) -> None:
    """Raise `ArgumentError` for an unknown strategy or accuracy, a limit that is no size in bytes, or no bool."""
    for name, value, valid in (("strategy", strategy, STRATEGIES), ("accuracy", accuracy, ACCURACIES)):
        if not isinstance(value, str) or value not in valid:
            raise ArgumentError(must(name, f"one of {', '.join(valid)}", repr(value)))
    if workspace_limit is not None and (
        isinstance(workspace_limit, bool) or not hasattr(workspace_limit, "__index__") or workspace_limit < 0
    ):
        raise ArgumentError(must("workspace_limit", "None or a number of bytes, 0 or more", repr(workspace_limit)))
    if not isinstance(reproducible, bool):
        raise ArgumentError(must("reproducible", "True or False", repr(reproducible)))


def applicable(problem: ConvProblem) -> Iterator[tuple[str, str | None]]:
    """Each solver's name with the reason it cannot run the problem, or None."""
    for solver in TABLE:
        yield solver.NAME, solver.applicable(problem, current())


def modelled_cost(problem: ConvProblem, candidate: Candidate) -> Cost:
    """The solver's own cost and that of the reorders around it."""
    here = machine()
    cost = candidate.solver.cost(problem, candidate.params, here)
    reorders = _reorders(problem, *candidate.solver.layouts(problem, candidate.params, here.isa))
    return Cost(cost.bound, cost.estimate + reorders) if reorders else cost


def _reorders(problem: ConvProblem, need_in: str | None, need_out: str | None) -> float:
    """Seconds to move the whole input and output to and from the layouts that a solver needs."""
    seconds = 0.0
    if need_in is not None and need_in != problem.in_layout:
        seconds += _reorder(problem, problem.in_bytes)
    if need_out is not None and need_out != problem.out_layout:
        seconds += _reorder(problem, problem.out_bytes)
    return seconds


def _reorder(problem: ConvProblem, size: int) -> float:
    here = machine()
    return here.seconds(2 * size / here.rate(2 * size), problem.threads)


def _able(problem: ConvProblem, solver: str | None) -> list[ModuleType]:
    """The solvers that can run the problem, or the one of that name if it can."""
    return [
        module for module in TABLE if solver in (None, module.NAME) and module.applicable(problem, current()) is None
    ]


def _may_admit(limits: Limits, module: ModuleType) -> bool:
    """Whether some candidate of the solver may be of an accuracy that the limits admit."""
    return not isinstance(module.ACCURACY, str) or limits.admits_accuracy(module.ACCURACY)


def _bound(problem: ConvProblem, module: ModuleType) -> float:
    """Seconds that no `modelled_cost` of the solver's candidates is below."""
    here = machine()
    return module.bound(problem, here) + _reorders(problem, *module.layouts(problem, None, here.isa))


@functools.lru_cache(maxsize=_MOST_COSTED)
def _costed(problem: ConvProblem, module: ModuleType, here: Machine) -> tuple[Ranked, ...]:
    """All candidates of a solver on this machine, its favourite first."""
    found = (Candidate(module, params) for params in module.candidates(problem, here.isa))
    return tuple(sorted((Ranked(candidate, modelled_cost(problem, candidate)) for candidate in found), key=_estimate))


def ranking(problem: ConvProblem, solver: str | None = None) -> list[Ranked]:
    """All candidates (of one solver, if named), the model's favourite first."""
    found = [each for module in _able(problem, solver) for each in _costed(problem, module, machine())]
    return sorted(found, key=_estimate)


def _estimate(ranked: Ranked) -> float:
    return ranked.cost.estimate


def search(
    problem: ConvProblem,
    limits: Limits,
    prefix: str = "",
    below: float = math.inf,
    accept: Callable[[Candidate], bool] = lambda candidate: True,
) -> Ranked | None:
    """The first of `admitted` that `accept` takes, if its estimate is less than `below`.

    Solvers are asked in the order of their lower bounds, and no more once a candidate is known that none of the others
    can beat.
    """
    able = [module for module in _able(problem, prefix.partition("(")[0] or None) if _may_admit(limits, module)]
    bounds = sorted((_bound(problem, module), TABLE.index(module)) for module in able)
    best, place = None, -1
    for bound, index in bounds:
        if bound > below:
            break
        for each in _costed(problem, TABLE[index], machine()):
            if each.cost.estimate > below or (each.cost.estimate == below and index > place):
                break
            named = str(each.candidate).startswith(prefix)
            if named and accept(each.candidate) and limited(problem, each, limits) is None:
                best, place, below = each, index, each.cost.estimate
                break
    return best


def spread(ranked: list[Ranked]) -> list[Ranked]:
    """In the model's order, but with the favourite of every way to form sums (algorithm and size of transform) in the
    running first.

    A tuner that stops early has then met everything that may win, whatever the model thinks of blocks and tiles.
    """
    if not ranked:
        return []
    limit = _IN_THE_RUNNING * ranked[0].cost.estimate
    first: dict[str, Ranked] = {}
    for item in ranked:
        if item.cost.estimate <= limit:
            first.setdefault(item.candidate.rounding, item)
    rest = [item for item in ranked if item is not first.get(item.candidate.rounding)]
    return [*first.values(), *rest]


def offered(problem: ConvProblem, ranked: Ranked) -> workload.Candidate:
    """The candidate as the tuner knows it."""
    return workload.Candidate(
        name=str(ranked.candidate),
        bound=ranked.cost.bound,
        estimate=ranked.cost.estimate,
        workspace=workspace_bytes(problem, ranked.candidate),
        accuracy=ranked.candidate.accuracy,
    )


def limited(problem: ConvProblem, ranked: Ranked, limits: Limits) -> str | None:
    """Why the limits leave a candidate out, or None."""
    if not limits.admits_accuracy(ranked.candidate.accuracy):
        return f"its accuracy class is {ranked.candidate.accuracy}, more than {limits.accuracy} admits"
    if limits.workspace is not None:
        size = workspace_bytes(problem, ranked.candidate)
        if size > limits.workspace:
            return f"it needs {size} bytes of workspace, more than the limit of {limits.workspace}"
    return None


def admitted(problem: ConvProblem, limits: Limits, prefix: str = "") -> list[Ranked]:
    """The candidates within the limits whose names begin so, the model's favourite first."""
    ranked = ranking(problem, prefix.partition("(")[0] or None)
    named = (each for each in ranked if str(each.candidate).startswith(prefix))
    return [each for each in named if limited(problem, each, limits) is None]


def by_model(problem: ConvProblem, limits: Limits, prefix: str = "") -> Candidate:
    """The model's favourite within the limits; as `favourite`."""
    return favourite(problem, limits, prefix).candidate


def favourite(problem: ConvProblem, limits: Limits, prefix: str = "") -> Ranked:
    """The first of `admitted`, found without the others where that can be.

    Raises
    ------
    WorkspaceError
        No candidate meets the workspace limit.
    """
    found = search(problem, limits, prefix)
    if found is not None:
        return found
    solver = prefix.partition("(")[0]
    candidates = [each.candidate for each in admitted(problem, replace(limits, workspace=None), prefix)]
    least = min((workspace_bytes(problem, candidate) for candidate in candidates), default=math.inf)
    if least == math.inf:
        raise ArgumentError(must("accuracy", f"one that {solver} meets", repr(limits.accuracy)))
    raise WorkspaceError(must("workspace_limit", f"at least {least} bytes for this problem", limits.workspace))


def by_name(problem: ConvProblem, algorithm: str, limits: Limits) -> Candidate | None:
    """The candidate that `algorithm` names, or None if it names a solver that can run the problem.

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
        return None
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


def forget(problem: ConvProblem | None = None) -> None:
    """Drop remembered choices (of a problem): the store has changed."""
    with _lock:
        for key in [key for key in _memory if problem in (None, key[0])]:
            del _memory[key]


def choose(problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None = None) -> Choice:
    """The candidate for a problem; remembered per process."""
    key = (problem, strategy, limits, algorithm)
    choice = _memory.get(key)
    if choice is None:
        choice = _choose(problem, strategy, limits, algorithm)
        with _lock:
            while len(_memory) >= _MOST_REMEMBERED:
                del _memory[next(iter(_memory))]
            _memory[key] = choice
    if strategy == "cached" and algorithm is None and choice.decided_by in _UNTUNED:
        from cpuconv.choice import untuned_log as missed

        missed.remember(problem, limits)
    return choice


def _choose(problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None) -> Choice:
    prefix = ""  # of the names to choose from
    if algorithm is not None:
        named = by_name(problem, algorithm, limits)
        if named is not None:
            return Choice(named, "named")
        prefix = f"{algorithm}("
    if limits.reproducible and problem.threads > 1:
        # Workers never change a result, other ways to sum do: one thread decides for any number of them.
        prefix = choose(replace(problem, threads=1), strategy, limits, algorithm).candidate.rounding
    if strategy == "heuristic":
        return Choice(by_model(problem, limits, prefix), "model")
    from cpuconv.choice import tuned  # the store is opened only by those who ask for it

    known = tuned.lookup(problem, limits, prefix)
    if known is None and strategy == "profile" and problem.n and algorithm is None:
        tuned.profile(problem)
        known = tuned.lookup(problem, limits, prefix, read_only=False)
    older = tuned.older(problem, limits, prefix)
    return known if known is not None and not older else untuned(problem, limits, prefix, older, known)


def untuned(
    problem: ConvProblem, limits: Limits, prefix: str = "", older: Sequence[str] = (), known: Choice | None = None
) -> Choice:
    """What runs a problem that nothing current decides: where the model agrees, what was fastest with older kernels or
    else the nearest tuned neighbour's algorithm, else the model's choice.

    Arguments:
        older: candidates that were fastest with older kernels.  known: a choice among what is current, which was
        slower; it comes next.
    """
    from cpuconv.choice import neighbours

    best = favourite(problem, limits, prefix)
    if (found := neighbours.remembered(problem, older, best, limits)) is not None:
        return Choice(found, OLDER)
    if known is not None:
        return known
    found = neighbours.suggestion(problem, best, limits, prefix)
    return Choice(best.candidate, "model") if found is None else Choice(found, "neighbour")


def reusing(problem: ConvProblem, limits: Limits, choice: Choice, forms: Collection[Packing]) -> Choice:
    """The choice; or, where nothing is stored, the model's favourite among the candidates that read weights in one of
    the packed `forms`, if the model finds it hardly slower: packing takes longer than it loses."""
    if choice.decided_by not in _MODELLED or not forms or choice.candidate.packing(problem) in forms:
        return choice
    prefix = choice.candidate.rounding if limits.reproducible else ""
    below = _HARDLY * modelled_cost(problem, choice.candidate).estimate
    found = search(problem, limits, prefix, below, lambda candidate: candidate.packing(problem) in forms)
    return choice if found is None else Choice(found.candidate, "model")


def best_threads(problem: ConvProblem, strategy: str, limits: Limits) -> ConvProblem:
    """The problem with the number of threads that is fastest, up to its own: as stored, else all if there is enough
    work to share."""
    if strategy != "heuristic" and problem.n:
        from cpuconv.choice import tuned
        from cpuconv.choice import untuned_log as missed

        options = [replace(problem, threads=count) for count in thread_counts(problem.threads)]
        found = [tuned.best(option, limits) for option in options]
        if strategy == "profile" and None in found:
            for option in options:
                choose(option, strategy, limits)
            tuned.compare_threads(options)
            found = [tuned.best(option, limits, read_only=False) for option in options]
        pairs = list(zip(found, options, strict=True))
        known = [(each.row.score, option) for each, option in pairs if each is not None]
        if strategy == "cached" and len(known) < len(options):
            for each, option in pairs:
                if each is None:
                    missed.remember(option, limits)
        if known:
            return min(known, key=lambda each: each[0])[1]
    return replace(problem, threads=effective_threads(problem))


def resolve_layouts(problem: ConvProblem, in_layout: str, out_layout: str, limits: Limits) -> ConvProblem:
    """The problem with `auto` layouts replaced: channel blocks, or NCHW where the model finds it clearly faster.

    Channels that fill no more than half of a block stay in planes, as images are: blocks would hold more zeros.
    """

    def favourites(channels: int) -> tuple[str, ...]:
        return ("NCHW",) if 2 * channels <= current().lanes else (blocked.layout(current()), "NCHW")

    choosing = replace(problem, threads=1) if limits.reproducible and problem.threads > 1 else problem
    options = [
        replace(choosing, in_layout=first, out_layout=second)
        for first in (favourites(problem.c) if in_layout == AUTO else (in_layout,))
        for second in (favourites(problem.k) if out_layout == AUTO else (out_layout,))
    ]
    best, least = options[0], math.inf
    for option in options if len(options) > 1 else ():
        weight = _CLEARLY ** (option.in_layout, option.out_layout).count("NCHW")
        found = search(option, limits, below=least / weight)
        if found is not None and found.cost.estimate * weight < least:
            best, least = option, found.cost.estimate * weight
    return best if best.threads == problem.threads else replace(best, threads=problem.threads)
