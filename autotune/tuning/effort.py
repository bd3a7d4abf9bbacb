"""How much to spend on a problem."""

from __future__ import annotations

from autotune.data_classes import dataclass


@dataclass(frozen=True)
class Effort:
    """What one problem may cost.

    Attributes
    ----------
    candidates : int
        How many are timed at most.
    survivors : int
        How many of these are timed again at most, beside the model's choice.
    seconds : float
        Of timing, preparing included.
    """

    candidates: int
    survivors: int
    seconds: float


EFFORTS: dict[str, Effort] = {
    "quick": Effort(candidates=10, survivors=4, seconds=1.22),
    "normal": Effort(candidates=24, survivors=8, seconds=5.2),
    "exhaustive": Effort(candidates=1000, survivors=12, seconds=60.0),
}
