"""Common functions of view and copy operators: block support and offers of views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cpuconv.elements import OF_DTYPE
from cpuconv.graph.lowering import Offer


def blockable(value: Any) -> bool:
    """Whether a tensor can have channel blocks."""
    return value.dtype in OF_DTYPE and len(value.shape) in (3, 4) and 0 not in value.shape


def view_offers(inputs: Sequence[Any], ways: Iterable[tuple[str, str]], outputs: int = 1) -> list[Offer]:
    """Offers of views of the first input, for pairs of forms of it and all outputs; none for an empty tensor."""
    if 0 in inputs[0].shape:
        return []
    rest = [""] * (len(inputs) - 1)
    return [Offer((source, *rest), (goal,) * outputs, 0.0, view=True) for source, goal in ways]
