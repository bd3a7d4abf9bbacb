"""What a selection depends on: a problem, the user's settings, and stored rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Choice, Limits, Ranked, cheapest
from cpuconv.problem.problem import ConvProblem

AGREES = 1.1  # maximum ratio of the model's estimate for a suggested candidate to that for its own selection


class Tuner(Protocol):
    """The interface that times candidates during a call, for strategy "profile": `cpuconv.tuning.profile`."""

    def profile(self, problem: ConvProblem) -> None:
        """Time the problem's candidates and store the results."""

    def compare_threads(self, options: Sequence[ConvProblem]) -> None:
        """Time the stored winners of a problem for several numbers of threads in turn, and store the results."""


class Record(NamedTuple):
    """The selection of an earlier plan of a network: its problem, of these or other sizes, candidate and source."""

    problem: ConvProblem
    candidate: str
    decided_by: str


class Rows(NamedTuple):
    """Stored rows of a problem: the candidate of the best current one, and faster candidates of older kernels."""

    current: Choice | None
    older: Sequence[str]


@dataclass(frozen=True)
class Query:
    """A problem, and the settings for which its candidate is selected.

    Attributes
    ----------
    problem : ConvProblem
    strategy : str
    limits : Limits
    choose : callable
        Selects the candidate of another query, for sources that follow from it.
    algorithm : str or None
        The user's name of a candidate or of a solver.
    tuner : Tuner or None
        The module that times candidates, for strategy "profile".
    by_class : bool
        Whether the problem's class of sizes decides, so that results do not depend on earlier sizes.
    record : Record or None
    rounding : str
        Prefix of the names of the allowed candidates; empty: all of `algorithm`.
    logged : bool
        Whether the problem is logged if no row of current kernels decides.
    """

    problem: ConvProblem
    strategy: str
    limits: Limits
    choose: Callable[[Query], Choice]
    algorithm: str | None = None
    tuner: Tuner | None = None
    by_class: bool = False
    record: Record | None = None
    rounding: str = ""
    logged: bool = True

    @property
    def prefix(self) -> str:
        """Prefix of the names of the allowed candidates."""
        return self.rounding or ("" if self.algorithm is None else f"{self.algorithm}(")

    @property
    def key(self) -> tuple[object, ...]:
        """The settings that a cached selection depends on."""
        return self.strategy, self.limits, self.algorithm, self.rounding

    @lazy
    def rows(self) -> Rows:
        """The problem's rows within the limits; with strategy "profile", candidates without a row are timed first."""
        if self.strategy == "heuristic":
            return Rows(None, ())
        problem, limits = self.problem, self.limits
        current = tuned.lookup(problem, limits, self.prefix)
        times = self.tuner if self.strategy == "profile" and problem.n and self.algorithm is None else None
        if current is None and times is not None:
            times.profile(problem)
            current = tuned.lookup(problem, limits, self.prefix, read_only=False)
        return Rows(current, tuned.older(problem, limits, self.prefix))

    @lazy
    def modelled(self) -> Ranked:
        """The model's best candidate within the limits; raises as `model.cheapest`."""
        return cheapest(self.problem, self.limits, self.prefix)

    @property
    def agreed(self) -> float:
        """Maximum estimate of a suggested candidate with which the model agrees, in seconds."""
        return AGREES * self.modelled.cost.estimate


Source = Callable[[Query], "Choice | None"]
"""Selects a candidate, or returns None and leaves the decision to the next source."""
