"""Source: the selection for one thread, for results that are bit-identical for any number of threads."""

from __future__ import annotations

from dataclasses import replace

from cpuconv.conv.choice.model import Choice
from cpuconv.conv.choice.query import Query


def one_thread(query: Query) -> Choice | None:
    """Select among the candidates with the rounding of the selection for one thread.

    Results do not depend on workers but on the order of summation.
    """
    problem = query.problem
    if not query.limits.reproducible or problem.threads == 1 or query.rounding:
        return None
    single = query.choose(replace(query, problem=replace(problem, threads=1), logged=True))
    return query.choose(replace(query, rounding=single.candidate.rounding, logged=False))
