"""Select the plans of a network that are worth timing: float32, bfloat16 and a mixture, within a tolerance.

The models are corrected first: each operator is timed in both precisions, as the models may be wrong. The mixture is
found by `search`. Finally, it and the plans of one precision are timed in turn (`automatic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from baselib.data_classes import dataclass
from cpuconv.network.precision.search import Mixtures, Rounding, Search

CLEARLY = 0.99  # maximum ratio of a mixed plan's time to the others', if bfloat16 alone is within the tolerance


class Trials(Mixtures, Protocol):
    """The interface of a network for the selection among mixed plans and those of one precision."""

    def correct(self) -> None:
        """Time each operator separately in both precisions, and correct the models by the measured difference."""


class Finalist(NamedTuple):
    """A plan that is worth timing.

    `least` is the factor on the time of other plans below which this plan is preferred.
    """

    rounding: Rounding
    error: float
    least: float = 1.0


@dataclass(frozen=True)
class Finalists:
    """The plans of one network within the tolerance, and the error of each of its operators."""

    found: Sequence[Finalist]
    errors: Sequence[float]


def finalists(trials: Trials, tolerance: float) -> Finalists:
    """Float32, bfloat16 and a mixed plan, as far as their errors are within the tolerance.

    Empty if the error of float32 is not. If that of bfloat16 is, a mixed plan must be clearly faster, as times are
    noisy.
    """
    search, none = Search(trials, tolerance), Rounding()
    if search.error(none) > tolerance:
        return Finalists((), ())
    if search.every:
        trials.correct()
    single = [none, search.every] if search.error(search.every) <= tolerance else [none]
    least = CLEARLY if search.every in single else 1.0
    found = {each: Finalist(each, search.error(each)) for each in single}
    if (mixed := search.fastest()) not in found:
        found[mixed] = Finalist(mixed, search.error(mixed), least)
    return Finalists((*found.values(),), search.errors)
