"""The fastest of some forms of one network, each in the precisions that are worth timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autotune.data_classes import dataclass
from cpuconv.conv.choice.target import FULL, HALF, Target
from cpuconv.network.precision.choosing import CLEARLY, Finalist, Finalists, Rounding, finalists
from cpuconv.network.precision.programs import race
from cpuconv.network.precision.table import BYTES, Layer, rows_of
from cpuconv.network.precision.to_come import doubt
from cpuconv.network.precision.trials import Measured
from cpuconv.network.reports.precisions import PrecisionTable

MIXED = "mixed"


class Kinds(NamedTuple):
    """What plans of a form are called in which nothing, everything or a part of what may round to bfloat16 does."""

    none: str
    every: str
    some: str


class Form(NamedTuple):
    """A form of the network.

    Attributes
    ----------
    kinds : Kinds
    least : float
        The part of other forms' time that it takes at most to be preferred to them.
    """

    kinds: Kinds
    least: float = 1.0


OF_FLOATS = Form(Kinds(FULL, HALF, MIXED))
OF_BYTES = Form(Kinds(BYTES, f"{BYTES}, {HALF}", f"{BYTES}, {MIXED}"), CLEARLY)


@dataclass(frozen=True)
class Entrant:
    """A form of the network, measured, and what of it is within the tolerance."""

    form: Form
    trials: Measured
    finalists: Finalists

    @classmethod
    def of(cls, form: Form, trials: Measured, tolerance: float) -> Entrant:
        """With what is worth timing."""
        return cls(form, trials, finalists(trials, tolerance))

    def kind(self, rounding: Rounding) -> str:
        """What a plan of it is called."""
        kinds = self.form.kinds
        return kinds.none if not rounding else kinds.every if len(rounding) == self.trials.count else kinds.some


@dataclass(frozen=True)
class Fastest:
    """What won.

    Attributes
    ----------
    entrant : Entrant
    finalist : Finalist
    seconds, errors : mapping of str to float
        Of all that were timed, by kind.
    """

    entrant: Entrant
    finalist: Finalist
    seconds: Mapping[str, float]
    errors: Mapping[str, float]

    @property
    def target(self) -> Target:
        """The target with the precisions of all nodes."""
        return self.entrant.trials.operators.target(self.finalist.rounding)

    def table(
        self, name: str, tolerance: float, layers: Mapping[str, Layer], left_out: Mapping[str, str]
    ) -> PrecisionTable:
        """The report."""
        trials, finalist = self.entrant.trials, self.finalist
        errors = dict(enumerate(self.entrant.finalists.errors))
        rows, kind = rows_of(trials, errors, finalist, layers), self.entrant.kind(finalist.rounding)
        measured = self.seconds, self.errors, rows, left_out, doubt(len(trials.feeds))
        return PrecisionTable(name, tolerance, finalist.error, kind, *measured)


def fastest(entrants: Sequence[Entrant]) -> Fastest:
    """The fastest plan of all, timed in turns."""
    timed = [(entrant, each) for entrant in entrants for each in entrant.finalists.found]
    seconds = race([entrant.trials.runner(each.rounding) for entrant, each in timed])
    weighed = [spent / (entrant.form.least * each.least) for spent, (entrant, each) in zip(seconds, timed, strict=True)]
    entrant, finalist = timed[weighed.index(min(weighed))]
    kinds = [each.kind(finalist.rounding) for each, finalist in timed]
    errors = dict(zip(kinds, (each.error for _, each in timed), strict=True))
    return Fastest(entrant, finalist, dict(zip(kinds, seconds, strict=True)), errors)
