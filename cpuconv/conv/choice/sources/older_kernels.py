"""Source: stored rows of older kernels, if they are faster than current rows and the cost model confirms them."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.wisdom.tiers import OLDER_KERNELS
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Choice, Ranked, modelled_cost, why_excluded
from cpuconv.conv.choice.query import Query


def older_kernels(query: Query) -> Choice | None:
    """Select the fastest candidate of older kernels, not measured since, that the model confirms."""
    return first_confirmed(query, query.rows.older)


def first_confirmed(query: Query, names: Sequence[str]) -> Choice | None:
    """Select the first candidate that the model confirms.

    Parameters
    ----------
    names : sequence of str
        Candidates that were fastest with older kernels, the fastest first; unknown names are skipped.
    """
    problem = query.problem
    for name in names:
        candidate = tuned.named(problem, name)
        if candidate is not None:
            ranked = Ranked(candidate, modelled_cost(problem, candidate))
            if ranked.cost.estimate <= query.agreed and why_excluded(problem, ranked, query.limits) is None:
                return Choice(candidate, OLDER_KERNELS)
    return None
