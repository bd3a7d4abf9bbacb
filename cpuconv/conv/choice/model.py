"""Selection by the cost model: all candidates of a problem, their modelled times, and the limits of a selection."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import layouts
from autotune import workload
from baselib.data_classes import dataclass
from cpuconv.conv.recipe import Candidate, in_closed_set, workspace_bytes
from cpuconv.elements import U8, Element
from cpuconv.errors import ArgumentError, WorkspaceError, must
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.machine import closed as of_closed_set
from cpuconv.problem.integers import is_integer
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE, why_not
from cpuconv.solvers.shared.solver import Solver

STRATEGIES = ("heuristic", "cached", "profile")
ACCURACIES = ("exact", "standard", "fast")
AUTO = "auto"
AT_HAND = "at hand"
MODELLED = ("neighbour", "model")  # sources of decisions without stored results
_MAX_CACHED_LISTS = 32  # cached candidate lists, as consecutive queries concern the same problem
_STREAMED = 8.0  # minimum bytes per cycle from any L3 for sequential reads of whole arrays, thanks to prefetchers
_TRANSPOSED = {1: 10.0, 2: 16.0, 4: math.inf}  # maximum bytes per cycle, by bytes per element (Zen 5: 8 to 20)
_MAX_ESSENTIAL_RATIO = 1.5  # maximum ratio of an estimate to the best one for a candidate to be timed early


@dataclass(frozen=True)
class Limits:
    """Limits that a selected candidate satisfies."""

    accuracy: str = "standard"
    workspace: int | None = None
    reproducible: bool = False  # whether results are bit-identical for any number of threads
    closed: bool = False  # whether GEMM strips must be from the closed set
    cold: bool = False  # whether weights come from memory, as in a network: rows with cold weights take priority

    def admits_accuracy(self, accuracy: str) -> bool:
        """Whether candidates of an accuracy class are allowed."""
        return ACCURACIES.index(accuracy) <= ACCURACIES.index(self.accuracy)


@dataclass(frozen=True)
class Ranked:
    """A candidate with its modelled cost; `reason`: why the limits exclude it."""

    candidate: Candidate
    cost: Cost
    reason: str | None = None


@dataclass(frozen=True)
class Choice:
    """The selected candidate, and the source of the decision.

    Sources: "named", "pinned", "store", "shipped", "older kernels", "neighbour", "model", or "at hand". "at hand":
    existing kernels replace `awaited`, whose kernels are being compiled (None: it is hardly faster).
    """

    candidate: Candidate
    decided_by: str
    awaited: Candidate | None = None


def check_options(strategy: object, accuracy: object, workspace_limit: object, reproducible: object) -> None:
    """Raise `ArgumentError` for an unknown strategy or accuracy, an invalid size in bytes, or a non-boolean."""
    for name, value, valid in (("strategy", strategy, STRATEGIES), ("accuracy", accuracy, ACCURACIES)):
        if not isinstance(value, str) or value not in valid:
            raise ArgumentError(must(name, f"one of {', '.join(valid)}", repr(value)))
    if workspace_limit is not None and (not is_integer(workspace_limit) or workspace_limit < 0):
        raise ArgumentError(must("workspace_limit", "None or a number of bytes, 0 or more", repr(workspace_limit)))
    if not isinstance(reproducible, bool):
        raise ArgumentError(must("reproducible", "True or False", repr(reproducible)))


def check_types(problem: ConvProblem) -> None:
    """Raise `ArgumentError` if there are no kernels for the problem's element types."""
    if not any(reason is None for _, reason in applicable(problem)):
        signs = ": weights of uint8 are s8, or s16, less their zero points" if problem.types.w == U8 else ""
        raise ArgumentError(must("types", f"a combination that kernels support{signs}", problem.types))


def applicable(problem: ConvProblem) -> Iterator[tuple[str, str | None]]:
    """Yield each solver's name with the reason why it cannot run the problem, or None."""
    for solver in TABLE:
        yield solver.name, why_not(solver, problem, current())


def modelled_cost(problem: ConvProblem, candidate: Candidate, closed: bool = False) -> Cost:
    """Cost of a candidate with its reorders; `closed`: with tiles of the closed set."""
    return _with_reorders(problem, candidate, {}, _machine(closed))


Ends = tuple[str | None, str | None]


def _with_reorders(problem: ConvProblem, candidate: Candidate, known: dict[Ends, float], here: Machine) -> Cost:
    """As `modelled_cost`; `known` caches seconds of reorders by the layouts that candidates need."""
    cost: Cost = candidate.solver.cost(problem, candidate.params, here)
    seconds = _reorders(problem, candidate.solver.layouts(problem, candidate.params, here.isa), known)
    return cost.plus(seconds) if seconds else cost


def _reorders(problem: ConvProblem, ends: Ends, known: dict[Ends, float]) -> float:
    """Time of the reorders of the whole input and output from and to a solver's layouts, in seconds."""
    if ends in known:
        return known[ends]
    need_in, need_out = ends
    types, seconds = problem.types, 0.0
    if need_in is not None and need_in != problem.in_layout:
        seconds += _reorder(problem, types.x, problem.in_shape, (problem.in_layout, need_in))
    if need_out is not None and need_out != problem.out_layout:
        seconds += _reorder(problem, types.y, problem.out_shape, (need_out, problem.out_layout))
    known[ends] = seconds
    return seconds


def _reorder(problem: ConvProblem, element: Element, shape: tuple[int, int, int, int], names: tuple[str, str]) -> float:
    """Time of a sequential read of an activation in one layout and its write in another, in seconds.

    Measured on a Xeon: 10 to 11.5 bytes per cycle, where GEMM's access order gets 5 bytes per cycle from L3.
    """
    here = machine()
    moved = element.bytes * sum(math.prod(layouts.get(name).shape(*shape)) for name in names)
    in_memory = moved > 0.5 * here.l3
    rate = here.rate(moved) if in_memory else max(here.rate(moved), _STREAMED)
    return here.seconds(moved / min(rate, _TRANSPOSED[element.bytes]), problem.threads)


def _able(problem: ConvProblem, solver: str | None) -> list[Solver]:
    """The solvers that can run the problem, or only the named one if it can."""
    return [module for module in TABLE if solver in (None, module.name) and why_not(module, problem, current()) is None]


def _may_admit(limits: Limits, module: Solver) -> bool:
    """Whether the limits may allow the accuracy of some candidate of the solver."""
    return not isinstance(module.accuracy, str) or limits.admits_accuracy(module.accuracy)


def _bound(problem: ConvProblem, module: Solver, known: dict[Ends, float]) -> float:
    """Lower bound of `modelled_cost` for all candidates of the solver, in seconds; `known` as in `_with_reorders`."""
    here = machine()
    return module.bound(problem, here) + _reorders(problem, module.layouts(problem, None, here.isa), known)


@functools.lru_cache(maxsize=_MAX_CACHED_LISTS)
def _bounds(problem: ConvProblem, solver: str | None, here: Machine) -> tuple[tuple[float, int], ...]:
    """Lower bound and table index of each solver in `_able` on this machine, in ascending order."""
    reorders: dict[Ends, float] = {}
    return tuple(sorted((_bound(problem, module, reorders), TABLE.index(module)) for module in _able(problem, solver)))


@functools.lru_cache(maxsize=_MAX_CACHED_LISTS)
def _costed(problem: ConvProblem, module: Solver, here: Machine) -> tuple[Ranked, ...]:
    """All candidates of a solver on this machine, the lowest estimate first."""
    reorders: dict[Ends, float] = {}
    candidates = (Candidate(module, params) for params in module.candidates(problem, here.isa))
    costed = (Ranked(candidate, _with_reorders(problem, candidate, reorders, here)) for candidate in candidates)
    return tuple(sorted(costed, key=_estimate))


def ranking(problem: ConvProblem, solver: str | None = None, closed: bool = False) -> list[Ranked]:
    """All candidates (of one solver, if named), the lowest estimate first; `closed`: with tiles of the closed set."""
    here = _machine(closed)
    costed = (ranked for module in _able(problem, solver) for ranked in _costed(problem, module, here))
    return sorted(costed, key=_estimate)


def _machine(closed: bool) -> Machine:
    return of_closed_set(machine()) if closed else machine()


def _estimate(ranked: Ranked) -> float:
    return ranked.cost.estimate


def search(
    problem: ConvProblem,
    limits: Limits,
    prefix: str = "",
    below: float = math.inf,
    accept: Callable[[Candidate], bool] = lambda candidate: True,
) -> Ranked | None:
    """The first candidate of `within_limits` that `accept` allows, if its estimate is less than `below`.

    Solvers are tried in the order of their lower bounds, until no remaining one can beat the best candidate.
    """
    best, place, here = None, -1, _machine(limits.closed)
    for bound, index in _bounds(problem, prefix.partition("(")[0] or None, here):
        if bound > below:
            break
        if not _may_admit(limits, TABLE[index]):
            continue
        for ranked in _costed(problem, TABLE[index], here):
            if ranked.cost.estimate > below or (ranked.cost.estimate == below and index > place):
                break
            named = str(ranked.candidate).startswith(prefix)
            if named and accept(ranked.candidate) and why_excluded(problem, ranked, limits) is None:
                best, place, below = ranked, index, ranked.cost.estimate
                break
    return best


def with_kernels_of(known: Candidate, problem: ConvProblem, limits: Limits, slower: float) -> Ranked | None:
    """The solver's best candidate with the micro-kernels of `known`, one of its candidates for another problem.

    Its best candidate with any micro-kernels is used if it is `slower` times as fast. Both have the rounding of `known`
    if such candidates exist. None if the solver cannot run the problem. If the estimate is below `slower` times the
    solver's lower bound, only candidates with these micro-kernels are costed.
    """
    solver = known.solver
    if why_not(solver, problem, current()) is not None or not _may_admit(limits, solver):
        return None
    isa = _machine(limits.closed).isa
    made = with_same_rounding(problem, known, limits.closed) or [
        Candidate(solver, params) for params in solver.candidates(problem, isa)
    ]
    alike = [each.same_micro_kernels(known) for each in made]
    own = _cheapest_of(problem, limits, itertools.compress(made, alike))
    if own is not None and own.cost.estimate < slower * _bound(problem, solver, {}):
        return own
    best = _cheapest_of(problem, limits, (each for each, same in zip(made, alike, strict=True) if not same))
    if own is None or best is None:
        return own or best
    return own if own.cost.estimate < slower * best.cost.estimate else best


def with_same_rounding(problem: ConvProblem, known: Candidate, closed: bool = False) -> list[Candidate]:
    """The candidates with the same rounding as a candidate of the problem or of another size of it.

    Empty if that candidate is impossible for this size.
    """
    solver, isa = known.solver, _machine(closed).isa
    if solver.alike is not None:
        return [Candidate(solver, params) for params in solver.alike(problem, isa, known.params)]
    made = (Candidate(solver, params) for params in solver.candidates(problem, isa))
    return [each for each in made if not solver.rounding or each.rounding == known.rounding]


def cheapest_with_same_rounding(problem: ConvProblem, known: Candidate, limits: Limits) -> Ranked | None:
    """The model's best candidate among those with the rounding of `known`; None if there is none."""
    if why_not(known.solver, problem, current()) is not None:
        return None
    if not known.solver.rounding:
        return search(problem, limits, f"{known.solver.name}(")
    return _cheapest_of(problem, limits, with_same_rounding(problem, known, limits.closed))


def _cheapest_of(problem: ConvProblem, limits: Limits, candidates: Iterable[Candidate]) -> Ranked | None:
    """The model's best candidate among given ones, within the limits."""
    costed = sorted((Ranked(each, modelled_cost(problem, each, limits.closed)) for each in candidates), key=_estimate)
    return next((each for each in costed if why_excluded(problem, each, limits) is None), None)


def tuning_order(ranked: list[Ranked]) -> list[Ranked]:
    """Sort candidates for a tuner that may stop early: the essential ones first, both parts in the model's order.

    Essential is the best candidate per rounding (algorithm and transform size) whose estimate is close to the best one:
    blocks and tiles matter less.
    """
    if not ranked:
        return []
    limit = _MAX_ESSENTIAL_RATIO * ranked[0].cost.estimate
    first: dict[str, Ranked] = {}
    for item in ranked:
        if item.cost.estimate <= limit:
            first.setdefault(item.candidate.rounding, item)
    rest = [item for item in ranked if item is not first.get(item.candidate.rounding)]
    return [*first.values(), *rest]


def as_tuner_candidate(problem: ConvProblem, ranked: Ranked) -> workload.Candidate:
    """Convert a candidate to the tuner's type."""
    return workload.Candidate(
        name=str(ranked.candidate),
        bound=ranked.cost.bound,
        estimate=ranked.cost.estimate,
        workspace=workspace_bytes(problem, ranked.candidate),
        accuracy=ranked.candidate.accuracy,
    )


def why_excluded(problem: ConvProblem, ranked: Ranked, limits: Limits) -> str | None:
    """The reason why the limits exclude a candidate, or None."""
    if not limits.admits_accuracy(ranked.candidate.accuracy):
        return f"its accuracy class is {ranked.candidate.accuracy}, more than {limits.accuracy} admits"
    if limits.closed and not in_closed_set(problem, ranked.candidate):
        return "its GEMM strips are not of the closed set"
    if limits.workspace is not None:
        size = workspace_bytes(problem, ranked.candidate)
        if size > limits.workspace:
            return f"it needs {size} bytes of workspace, more than the limit of {limits.workspace}"
    return None


def within_limits(problem: ConvProblem, limits: Limits, prefix: str = "") -> list[Ranked]:
    """The candidates within the limits whose names start with `prefix`, the lowest estimate first."""
    ranked = ranking(problem, prefix.partition("(")[0] or None, limits.closed)
    named = (item for item in ranked if str(item.candidate).startswith(prefix))
    return [item for item in named if why_excluded(problem, item, limits) is None]


def by_model(problem: ConvProblem, limits: Limits, prefix: str = "") -> Candidate:
    """The model's best candidate within the limits; raises as `cheapest`."""
    return cheapest(problem, limits, prefix).candidate


def cheapest(problem: ConvProblem, limits: Limits, prefix: str = "") -> Ranked:
    """The first candidate of `within_limits`, without costing solvers that cannot beat it.

    Raises
    ------
    ArgumentError
        There are no kernels for the problem's types, or none of the required accuracy.
    WorkspaceError
        No candidate fits the workspace limit.
    """
    best = search(problem, limits, prefix)
    if best is not None:
        return best
    check_types(problem)
    solver = prefix.partition("(")[0]
    candidates = [ranked.candidate for ranked in within_limits(problem, replace(limits, workspace=None), prefix)]
    least = min((workspace_bytes(problem, candidate) for candidate in candidates), default=math.inf)
    if least == math.inf:
        raise ArgumentError(must("accuracy", f"one that {solver} meets", repr(limits.accuracy)))
    raise WorkspaceError(must("workspace_limit", f"at least {least} bytes for this problem", limits.workspace))
