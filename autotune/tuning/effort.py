"""Effort levels: limits of the work per problem."""

from __future__ import annotations

from baselib.data_classes import dataclass


@dataclass(frozen=True)
class Effort:
    """Limits for tuning one problem.

    Attributes
    ----------
    candidates : int
        Max. candidates that are timed.
    survivors : int
        Max. candidates that are timed again, in addition to the model's choice.
    seconds : float
        Time limit of timing, including preparation.
    """

    candidates: int
    survivors: int
    seconds: float


EFFORTS: dict[str, Effort] = {
    "quick": Effort(candidates=10, survivors=4, seconds=1.22),
    "normal": Effort(candidates=24, survivors=8, seconds=5.2),
    "exhaustive": Effort(candidates=1000, survivors=12, seconds=60.0),
}
