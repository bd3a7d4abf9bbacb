"""Which operators of a network round: the fastest plan whose measured error stays within a tolerance.

Errors of roundings are independent, so their squares add up. In the one problem that selects layouts and algorithms
(`selection.planning`), an offer that rounds then costs its seconds and, for each squared error, a price: a Lagrange
multiplier for the bound on the sum. The least price is looked for at which the network as a whole, measured, is within
the tolerance; single operators that still fit are added, as sums of such prices leave gaps. Which products multiply
bytes is found by the same search (`quantizing.choosing`).

To bfloat16: what is as fast by the models need not be as fast, so each operator is timed in both precisions before,
which corrects the models, and the plan and those of one precision are timed in turns.

Source: Lagrangian relaxation of bit allocation, Shoham and Gersho, "Efficient bit allocation for an arbitrary set of
quantizers" (IEEE Trans. ASSP 36, 1988).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from autotune.data_classes import dataclass

Rounding = frozenset[int]  # the operators that may round, by number

_STEPS, _HALVINGS, _ADDED = 40, 12, 12  # of the price: most steps up, then halvings; most operators tried at the end
_STEP = 4.0
_LEAST, _LARGEST = 1e-30, 1e12  # of a squared error: infinite ones would hide all others
CLEARLY = 0.99  # of the others' time: what a mixture takes at most where bfloat16 is within as a whole


class Mixtures(Protocol):
    """What a search for a mixture asks of a network."""

    @property
    def count(self) -> int:
        """Of operators that may round."""

    def errors(self) -> Sequence[float]:
        """What the rounding of each operator adds to the outputs' error, as measured."""

    def solved(self, prices: Sequence[float]) -> Rounding:
        """The operators that round in the fastest plan by the models, where the rounding of each costs seconds more."""

    def modelled(self, rounding: Rounding) -> float:
        """Seconds of the fastest plan by the models in which only these may round."""

    def error(self, rounding: Rounding) -> float:
        """The whole network's, as measured; where none rounds, 0 of a network of floats, and of one of bytes theirs."""


class Trials(Mixtures, Protocol):
    """What choosing among all and mixtures asks of it besides."""

    def correct(self) -> None:
        """Time each operator alone in both precisions; the models then differ by what was measured."""


class Finalist(NamedTuple):
    """What is worth timing.

    `least` is the part of the others' time that it takes at most to be preferred to them.
    """

    rounding: Rounding
    error: float
    least: float = 1.0


@dataclass(frozen=True)
class Finalists:
    """Those of one network, all within the tolerance, and the error of each of its operators."""

    found: Sequence[Finalist]
    errors: Sequence[float]


def finalists(trials: Trials, tolerance: float) -> Finalists:
    """float32, bfloat16 and a mixture, of those whose error is within the tolerance; none where not even float32's is.

    Where bfloat16 is within, a mixture must be clearly faster: times are noisy.
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
    """Errors of mixtures, each measured once, and the tolerance that they keep to.

    Parameters
    ----------
    trials : Mixtures
    tolerance : float
    base : float
        The error where nothing rounds.
    additive : bool
        Whether mixtures keep to the tolerance by the sum of their operators' squares too.
    """

    def __init__(self, trials: Mixtures, tolerance: float, base: float, *, additive: bool = True) -> None:
        self.tolerance, self._measured, self._additive = tolerance, trials.error, additive
        self.errors = trials.errors()
        self.squares = [min(each**2, _LARGEST) for each in self.errors]
        self._base = base**2
        self._known: dict[Rounding, float] = {Rounding(): base}

    def square(self, rounding: Rounding) -> float:
        """Of the error that is expected of a mixture: squares of independent errors add up."""
        return self._base + sum(self.squares[at] for at in rounding)

    def error(self, rounding: Rounding) -> float:
        """Of the whole network."""
        if rounding not in self._known:
            self._known[rounding] = self._measured(rounding)
        return self._known[rounding]

    def holds(self, rounding: Rounding) -> bool:
        """Whether a mixture is within the tolerance: by the sum of its operators' squares too, if that is asked for.

        Of many mixtures that are tried, one may be within on these samples by chance, and on no others.
        """
        return self._adds_up(rounding) and self.error(rounding) <= self.tolerance

    def may_hold(self, rounding: Rounding, more: int) -> bool:
        """Whether it may with an operator more."""
        square = self.error(rounding) ** 2 + self.squares[more]
        return square <= self.tolerance**2 and self._adds_up(rounding | {more})

    def _adds_up(self, rounding: Rounding) -> bool:
        return not self._additive or self.square(rounding) <= self.tolerance**2


def mixture(trials: Mixtures, bound: Bound) -> Rounding:
    """The operators that round at the least price that is found to be within the tolerance, and more that fit.

    Where what is fastest without a price is within, that; none where nothing else is.
    """

    def at(price: float) -> Rounding:
        return trials.solved([price * square for square in bound.squares])

    if bound.holds(free := at(0.0)):
        return free
    cheap = dear = trials.modelled(Rounding(range(trials.count))) / bound.tolerance**2  # of a run, for all of it
    for _ in range(_STEPS):  # to a price that is too low
        if not bound.holds(at(cheap)):
            break
        cheap /= _STEP
    for _ in range(_STEPS):  # and to one that is not
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
    """With more operators that fit: those first that save most time for their squared error."""
    before = trials.modelled(rounding)
    gains = {at: before - trials.modelled(rounding | {at}) for at in range(trials.count) if at not in rounding}
    worth = {at: gain / max(bound.squares[at], _LEAST) for at, gain in gains.items() if gain > 0}
    tried = 0
    for at in sorted(worth, key=lambda at: -worth[at]):
        if tried < _ADDED and bound.may_hold(rounding, at):
            tried += 1
            rounding = rounding | {at} if bound.holds(rounding | {at}) else rounding
    return rounding
