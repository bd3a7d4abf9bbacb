"""Select the operators of a network that round: the fastest plan whose measured error is within a tolerance.

Errors of roundings are independent, so their squares add up. In the problem that selects layouts and algorithms
(`selection.planning`), an offer that rounds therefore costs its seconds plus a price times its squared error. The price
is a Lagrange multiplier for the bound on the sum. The search determines the lowest price at which the measured error of
the whole network is within the tolerance. Then single operators that still fit are added, as such prices leave gaps.
The same search selects the operators that multiply in int8 (`quantizing.choosing`).

For bfloat16, the models are corrected first: each operator is timed in both precisions, as the models may be wrong.
Finally, the mixed plan and those of one precision are timed in turn.

Source: Lagrangian relaxation of bit allocation, Shoham and Gersho, "Efficient bit allocation for an arbitrary set of
quantizers" (IEEE Trans. ASSP 36, 1988).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from autotune.data_classes import dataclass

Rounding = frozenset[int]  # indices of the operators that may round

_STEPS, _HALVINGS, _ADDED = 40, 12, 12  # maximum steps of the price, bisections, and operators tried at the end
_STEP = 4.0
_MIN_SQUARE, _MAX_SQUARE = 1e-30, 1e12  # bounds of a squared error: infinite ones would hide all others
CLEARLY = 0.99  # maximum ratio of a mixed plan's time to the others', if bfloat16 alone is within the tolerance


class Mixtures(Protocol):
    """The interface of a network that a search for a mixed plan uses."""

    @property
    def count(self) -> int:
        """Number of operators that may round."""

    def errors(self) -> Sequence[float]:
        """Measured increase of the outputs' error by the rounding of each operator."""

    def solved(self, prices: Sequence[float]) -> Rounding:
        """The operators that round in the fastest plan by the models; `prices` are added seconds of their rounding."""

    def modelled(self, rounding: Rounding) -> float:
        """Modelled seconds of the fastest plan in which only these operators may round."""

    def error(self, rounding: Rounding) -> float:
        """Measured error of the whole network; with an empty `rounding` 0 for float32, or the error of int8."""


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
    none, every = Rounding(), Rounding(range(trials.count))
    base = trials.error(none)
    if base > tolerance:
        return Finalists((), ())
    if every:
        trials.correct()
    bound = Bound(trials, tolerance, base)
    single = [none, every] if bound.error(every) <= tolerance else [none]
    least = CLEARLY if every in single else 1.0
    found = {each: Finalist(each, bound.error(each)) for each in single}
    if (mixed := mixture(trials, bound)) not in found:
        found[mixed] = Finalist(mixed, bound.error(mixed), least)
    return Finalists((*found.values(),), bound.errors)


class Bound:
    """Errors of mixed plans, each measured once, and their tolerance.

    Parameters
    ----------
    trials : Mixtures
    tolerance : float
    base : float
        The error without rounding.
    additive : bool
        Whether the sum of the operators' squared errors must be within the tolerance, too.
    """

    def __init__(self, trials: Mixtures, tolerance: float, base: float, *, additive: bool = True) -> None:
        self.tolerance, self._measured, self._additive = tolerance, trials.error, additive
        self.errors = trials.errors()
        self.squares = [min(each**2, _MAX_SQUARE) for each in self.errors]
        self._base = base**2
        self._known: dict[Rounding, float] = {Rounding(): base}

    def square(self, rounding: Rounding) -> float:
        """Expected squared error of a mixed plan: squares of independent errors add up."""
        return self._base + sum(self.squares[at] for at in rounding)

    def error(self, rounding: Rounding) -> float:
        """Measured error of the whole network."""
        if rounding not in self._known:
            self._known[rounding] = self._measured(rounding)
        return self._known[rounding]

    def holds(self, rounding: Rounding) -> bool:
        """Whether a mixed plan is within the tolerance; if `additive`, also by its operators' squared errors.

        Of many tested plans, one may be within the tolerance by chance on these samples, and on no others.
        """
        return self._adds_up(rounding) and self.error(rounding) <= self.tolerance

    def may_hold(self, rounding: Rounding, more: int) -> bool:
        """Whether a mixed plan with one more operator may be within the tolerance."""
        square = self.error(rounding) ** 2 + self.squares[more]
        return square <= self.tolerance**2 and self._adds_up(rounding | {more})

    def _adds_up(self, rounding: Rounding) -> bool:
        return not self._additive or self.square(rounding) <= self.tolerance**2


def mixture(trials: Mixtures, bound: Bound) -> Rounding:
    """The operators that round at the lowest suitable price, and more that fit.

    If the fastest plan without a price is within the tolerance, its operators; empty if no plan is.
    """

    def at(price: float) -> Rounding:
        return trials.solved([price * square for square in bound.squares])

    if bound.holds(free := at(0.0)):
        return free
    cheap = dear = trials.modelled(Rounding(range(trials.count))) / bound.tolerance**2  # run time per squared error
    for _ in range(_STEPS):  # decrease to a price that is too low
        if not bound.holds(at(cheap)):
            break
        cheap /= _STEP
    for _ in range(_STEPS):  # increase to one that is high enough
        if bound.holds(at(dear)):
            break
        dear *= _STEP
    else:
        return _added(trials, bound, Rounding())
    for _ in range(_HALVINGS):
        middle = (cheap * dear) ** 0.5
        cheap, dear = (cheap, middle) if bound.holds(at(middle)) else (middle, dear)
    return _added(trials, bound, at(dear))


def _added(trials: Mixtures, bound: Bound, rounding: Rounding) -> Rounding:
    """Add operators that fit: those first that save most time per squared error."""
    before = trials.modelled(rounding)
    gains = {at: before - trials.modelled(rounding | {at}) for at in range(trials.count) if at not in rounding}
    worth = {at: gain / max(bound.squares[at], _MIN_SQUARE) for at, gain in gains.items() if gain > 0}
    tried = 0
    for at in sorted(worth, key=lambda at: -worth[at]):
        if tried < _ADDED and bound.may_hold(rounding, at):
            tried += 1
            rounding = rounding | {at} if bound.holds(rounding | {at}) else rounding
    return rounding
