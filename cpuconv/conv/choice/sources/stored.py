"""Source: the fastest stored row of current kernels."""

from __future__ import annotations

from cpuconv.conv.choice.model import Choice
from cpuconv.conv.choice.query import Query


def stored(query: Query) -> Choice | None:
    """Select the candidate of the problem's fastest row within the limits."""
    return query.rows.current
