"""Select the fastest of several forms of a network, each in the precisions that are worth timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baselib.data_classes import dataclass
from cpuconv.conv.choice.target import PRECISION_F32, Target, narrow_precision
from cpuconv.network.precision.choosing import CLEARLY, Finalist, Finalists, finalists
from cpuconv.network.precision.prediction_bound import doubt
from cpuconv.network.precision.sample_groups import race
from cpuconv.network.precision.search import Rounding
from cpuconv.network.precision.table import INT8, Layer, rows_of
from cpuconv.network.precision.trials import Measured
from cpuconv.network.reports.precisions import PrecisionTable

MIXED = "mixed"


class Kinds(NamedTuple):
    """Labels of a form's plans by how many of its operators may round: none, all or some."""

    none: str
    every: str
    some: str


class Form(NamedTuple):
    """A form of the network: its matrix multiplications and convolutions in floating point or in int8.

    Attributes
    ----------
    kinds : Kinds
    least : float
        Factor on the time of other forms below which this form is preferred.
    """

    kinds: Kinds
    least: float = 1.0


def float_network() -> Form:
    """The network in floating point; rounding is to the type that this CPU multiplies."""
    return Form(Kinds(PRECISION_F32, narrow_precision(), MIXED))


def int8_network() -> Form:
    """The network in int8, other operators in floating point."""
    return Form(Kinds(INT8, f"{INT8}, {narrow_precision()}", f"{INT8}, {MIXED}"), CLEARLY)


@dataclass(frozen=True)
class Entrant:
    """A form of the network with its measurements, and its candidates within the tolerance."""

    form: Form
    trials: Measured
    finalists: Finalists

    @classmethod
    def of(cls, form: Form, trials: Measured, tolerance: float) -> Entrant:
        """Determine the candidates that are worth timing."""
        return cls(form, trials, finalists(trials, tolerance))

    def kind(self, rounding: Rounding) -> str:
        """The label of one of its plans."""
        kinds = self.form.kinds
        return kinds.none if not rounding else kinds.every if len(rounding) == self.trials.count else kinds.some


@dataclass(frozen=True)
class Fastest:
    """The fastest plan.

    Attributes
    ----------
    entrant : Entrant
    finalist : Finalist
    seconds, errors : mapping of str to float
        Times and errors of all timed plans, by label.
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
        """Make the report."""
        trials, finalist = self.entrant.trials, self.finalist
        errors = dict(enumerate(self.entrant.finalists.errors))
        rows, kind = rows_of(trials, errors, finalist, layers), self.entrant.kind(finalist.rounding)
        measured = self.seconds, self.errors, rows, left_out, doubt(len(trials.feeds))
        return PrecisionTable(name, tolerance, finalist.error, kind, *measured)


def fastest(entrants: Sequence[Entrant]) -> Fastest:
    """Time all plans in turn, and select the fastest."""
    timed = [(entrant, each) for entrant in entrants for each in entrant.finalists.found]
    seconds = race([entrant.trials.runner(each.rounding) for entrant, each in timed])
    weighed = [spent / (entrant.form.least * each.least) for spent, (entrant, each) in zip(seconds, timed, strict=True)]
    entrant, finalist = timed[weighed.index(min(weighed))]
    kinds = [each.kind(finalist.rounding) for each, finalist in timed]
    errors = dict(zip(kinds, (each.error for _, each in timed), strict=True))
    return Fastest(entrant, finalist, dict(zip(kinds, seconds, strict=True)), errors)
