"""Selection of the candidate for a problem: the first of `SOURCES` that decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.wisdom.tiers import OLDER_KERNELS
from cpuconv.conv import session
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import MODELLED, Choice, Limits
from cpuconv.conv.choice.query import Query, Record, Source, Tuner
from cpuconv.conv.choice.sources.modelled import modelled
from cpuconv.conv.choice.sources.named import named
from cpuconv.conv.choice.sources.nearest_problem import nearest_problem
from cpuconv.conv.choice.sources.older_kernels import first_confirmed, older_kernels
from cpuconv.conv.choice.sources.one_thread import one_thread
from cpuconv.conv.choice.sources.recorded import recorded
from cpuconv.conv.choice.sources.size_class import size_class_algorithm
from cpuconv.conv.choice.sources.stored import stored
from cpuconv.problem.problem import ConvProblem

SOURCES: tuple[Source, ...] = (
    named,
    recorded,
    size_class_algorithm,
    one_thread,
    older_kernels,
    stored,
    nearest_problem,
    modelled,
)
"""Sources of a selection, asked in this order; the first that does not return None decides."""
_UNTUNED = (OLDER_KERNELS, *MODELLED)  # sources of decisions without results of current kernels


def choose(
    problem: ConvProblem,
    strategy: str,
    limits: Limits,
    algorithm: str | None = None,
    tuner: Tuner | None = None,
    *,
    by_class: bool = False,
) -> Choice:
    """Select the candidate for a problem; see `Query` for the arguments. Strategy "profile" needs a `tuner`."""
    return decide(Query(problem, strategy, limits, decide, algorithm, tuner, by_class))


def decide(query: Query) -> Choice:
    """Select a candidate; the session caches it, unless it depends on a class of sizes."""
    choices = session.current.choices
    choice = None if query.by_class else choices.get(query.problem, query.key)
    if choice is None:
        choice = _first(query, SOURCES)
        assert choice is not None  # the model decides or raises
        if not query.by_class:
            choices.put(query.problem, query.key, choice)
    if query.logged and query.algorithm is None:
        note_untuned(query.problem, query.strategy, query.limits, choice)
    return choice


def from_record(problem: ConvProblem, strategy: str, limits: Limits, record: Record) -> Choice | None:
    """Select the candidate for a problem by a record alone; None if it does not decide."""
    choice = recorded(Query(problem, strategy, limits, decide, record=record))
    if choice is not None and record.problem != problem:
        note_untuned(problem, strategy, limits, choice)
    return choice


def untuned(problem: ConvProblem, limits: Limits, older: Sequence[str] = ()) -> Choice:
    """Select a candidate for a problem without rows of current kernels.

    Parameters
    ----------
    older : sequence of str
        Candidates that were fastest with older kernels, the fastest first.
    """
    query = Query(problem, "cached", limits, decide)
    choice = first_confirmed(query, older) or _first(query, SOURCES[SOURCES.index(stored) + 1 :])
    assert choice is not None
    return choice


def _first(query: Query, sources: Iterable[Source]) -> Choice | None:
    """Ask sources in order for a selection."""
    return next((choice for source in sources if (choice := source(query)) is not None), None)


def note_untuned(problem: ConvProblem, strategy: str, limits: Limits, choice: Choice) -> None:
    """Log a problem whose selection was not decided by a row of current kernels."""
    if strategy == "cached" and choice.decided_by in _UNTUNED:
        session.current.untuned.add(problem, limits, is_tuned)


def is_tuned(problem: ConvProblem, limits: Limits) -> bool:
    """Whether a row of current kernels decides, and no row of older kernels is faster."""
    return tuned.lookup(problem, limits) is not None and not tuned.older(problem, limits)
