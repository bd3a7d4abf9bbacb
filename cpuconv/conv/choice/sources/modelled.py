"""Source: the cost model, which always decides."""

from __future__ import annotations

from cpuconv.conv.choice.model import Choice
from cpuconv.conv.choice.query import Query


def modelled(query: Query) -> Choice | None:
    """Select the model's best candidate within the limits; raises as `model.cheapest`."""
    return Choice(query.modelled.candidate, "model")
