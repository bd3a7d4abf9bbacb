"""Search for the operators of a network that compute in lower precision: the fastest plan within an error tolerance.

Errors of single operators are independent, so their squares add up. In the problem that selects the fastest plan, an
operator in lower precision therefore costs its seconds plus a price times its squared error. The price is a Lagrange
multiplier for the bound on the sum. The search determines the lowest price at which the measured error of the whole
network is within the tolerance. Then single operators that still fit are added, as such prices leave gaps.

`Mixtures` is what the search needs to know of a network: operators that round to bfloat16 (`trials`), or layers that
are int8 (`quantizing.choosing`).

Source: Lagrangian relaxation of bit allocation, Shoham and Gersho, "Efficient bit allocation for an arbitrary set of
quantizers" (IEEE Trans. ASSP 36, 1988).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baselib.locks import lazy

Rounding = frozenset[int]  # indices of the operators in lower precision

_STEPS, _HALVINGS, _ADDED = 40, 12, 12  # maximum steps of the price, bisections, and operators tried at the end
_STEP = 4.0
_MIN_SQUARE, _MAX_SQUARE = 1e-30, 1e12  # bounds of a squared error: infinite ones would hide all others


class Mixtures(Protocol):
    """The interface of a network with operators in lower precision."""

    @property
    def count(self) -> int:
        """Number of operators that may be in lower precision."""

    def errors(self) -> Sequence[float]:
        """Measured increase of the outputs' error by the lower precision of each operator."""

    def solved(self, prices: Sequence[float]) -> Rounding:
        """The operators of the fastest plan by the models; `prices` are added seconds of their lower precision."""

    def modelled(self, rounding: Rounding) -> float:
        """Modelled seconds of the fastest plan in which only these operators may be in lower precision."""

    def error(self, rounding: Rounding) -> float:
        """Measured error of the whole network; with an empty `rounding` 0 for float32, or the error of int8."""


class Search:
    """A search among the mixtures of a network; each error is measured at most once, when it is needed.

    Parameters
    ----------
    mixtures : Mixtures
    tolerance : float
    additive : bool
        Whether the sum of the operators' squared errors must be within the tolerance, too. Of many tested plans, one
        may be within the tolerance by chance on these samples, and on no others.
    """

    def __init__(self, mixtures: Mixtures, tolerance: float, *, additive: bool = True) -> None:
        self._mixtures, self.tolerance, self._additive = mixtures, tolerance, additive
        self._known: dict[Rounding, float] = {}

    @property
    def every(self) -> Rounding:
        """All operators."""
        return Rounding(range(self._mixtures.count))

    @lazy
    def errors(self) -> Sequence[float]:
        """Measured increase of the error by each operator."""
        return self._mixtures.errors()

    @lazy
    def _squares(self) -> list[float]:
        return [min(each**2, _MAX_SQUARE) for each in self.errors]

    def error(self, rounding: Rounding) -> float:
        """Measured error of the whole network."""
        if rounding not in self._known:
            self._known[rounding] = self._mixtures.error(rounding)
        return self._known[rounding]

    def fastest(self) -> Rounding:
        """The operators at the lowest suitable price, and more that fit.

        If the fastest plan without a price is within the tolerance, its operators; empty if no plan is.
        """
        if self._holds(free := self._at(0.0)):
            return free
        cheap = dear = self._mixtures.modelled(self.every) / self.tolerance**2  # run time per squared error
        for _ in range(_STEPS):  # decrease to a price that is too low
            if not self._holds(self._at(cheap)):
                break
            cheap /= _STEP
        for _ in range(_STEPS):  # increase to one that is high enough
            if self._holds(self._at(dear)):
                break
            dear *= _STEP
        else:
            return self._extended(Rounding())
        for _ in range(_HALVINGS):
            middle = (cheap * dear) ** 0.5
            cheap, dear = (cheap, middle) if self._holds(self._at(middle)) else (middle, dear)
        return self._extended(self._at(dear))

    def _at(self, price: float) -> Rounding:
        return self._mixtures.solved([price * square for square in self._squares])

    def _holds(self, rounding: Rounding) -> bool:
        """Whether a mixture is within the tolerance; if `additive`, also by its operators' squared errors."""
        return self._adds_up(rounding) and self.error(rounding) <= self.tolerance

    def _may_hold(self, rounding: Rounding, more: int) -> bool:
        """Whether a mixture with one more operator may be within the tolerance."""
        square = self.error(rounding) ** 2 + self._squares[more]
        return square <= self.tolerance**2 and self._adds_up(rounding | {more})

    def _adds_up(self, rounding: Rounding) -> bool:
        """Whether the expected squared error is within: squares of independent errors add up."""
        if not self._additive:
            return True
        return self.error(Rounding()) ** 2 + sum(self._squares[at] for at in rounding) <= self.tolerance**2

    def _extended(self, rounding: Rounding) -> Rounding:
        """Add operators that fit: those first that save most time per squared error."""
        before = self._mixtures.modelled(rounding)
        gains = {at: before - self._mixtures.modelled(rounding | {at}) for at in sorted(self.every - rounding)}
        worth = {at: gain / max(self._squares[at], _MIN_SQUARE) for at, gain in gains.items() if gain > 0}
        tried = 0
        for at in sorted(worth, key=lambda at: -worth[at]):
            if tried < _ADDED and self._may_hold(rounding, at):
                tried += 1
                rounding = rounding | {at} if self._holds(rounding | {at}) else rounding
        return rounding
