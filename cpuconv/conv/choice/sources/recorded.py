"""Source: the record of an earlier plan of the network, such as a stored layout plan."""

from __future__ import annotations

import functools

from cpuconv.conv import session
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Choice, Limits, Ranked, search, with_kernels_of
from cpuconv.conv.choice.query import Query
from cpuconv.conv.recipe import Candidate
from cpuconv.problem.problem import ConvProblem

MAX_REUSE_SLOWDOWN = 1.1  # ratio up to which another size's micro-kernels are used; the model's error is as large
_parsed = functools.lru_cache(maxsize=4096)(Candidate.parse)


def recorded(query: Query) -> Choice | None:
    """Select the candidate of a record for this problem, or start from that for another size."""
    record = query.record
    if record is None:
        return None
    if record.problem != query.problem:
        return _from_other_size(query, record.candidate)
    candidate = tuned.named(query.problem, record.candidate)
    return None if candidate is None else Choice(candidate, record.decided_by)


def _from_other_size(query: Query, name: str) -> Choice | None:
    """Select by the model among the candidates of the solver that `name`, selected for another size, is of.

    The existing micro-kernels are preferred, unless the model finds others clearly faster. None if that does not
    decide: results are stored, or the solver cannot run the problem.
    """
    problem, limits = query.problem, query.limits
    if query.strategy == "profile" or limits.reproducible:
        return None
    choices, key = session.current.choices, (query.strategy, limits, name, recorded.__name__)
    choice: Choice | None = choices.get(problem, key)
    if choice is None:
        if query.strategy == "cached" and tuned.any_rows() and _is_stored(problem, limits):
            return None
        best = _with_kernels_of(name, problem, limits)
        if best is None:
            return None
        choice = Choice(best.candidate, "model")
        choices.put(problem, key, choice)
    return choice


def _is_stored(problem: ConvProblem, limits: Limits) -> bool:
    return bool(tuned.lookup(problem, limits) or tuned.older(problem, limits))


def _with_kernels_of(name: str, problem: ConvProblem, limits: Limits) -> Ranked | None:
    try:
        known = _parsed(name)
    except ValueError:  # the name is from an older release
        return search(problem, limits, f"{name.partition('(')[0]}(")
    return with_kernels_of(known, problem, limits, MAX_REUSE_SLOWDOWN)
