"""Errors of networks of bytes on samples that they do not follow from.

Ranges and biases follow from samples, and on these a network errs less than on others. So two more are made, the ranges
and biases of each from every other sample, and each is judged on the samples that the other one follows from
(cross-fitting). The network that runs follows from all of them: it knows more than either, but is judged too. Of many
samples what they do alike outweighs what one does alone, and the network that runs is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpuconv.quantizing.calibrating import Calibration
from cpuconv.quantizing.errors import Judge, Measure
from cpuconv.quantizing.graphs.products import Product

MANY = 33  # samples
_WHOLE = "measuring the error"  # of the whole network


def known_by(samples: int) -> int:
    """From how many of the samples ranges follow, of each network that is judged."""
    return samples // 2 if _in_halves(samples) else samples


def _in_halves(samples: int) -> bool:
    return 1 < samples < MANY


class HeldOut:
    """What judges mixtures of one network.

    Parameters
    ----------
    made : Calibration
        From all samples.
    judge : Judge
        On all of them.
    measure : callable
        Makes what takes in samples and says the error.

    Attributes
    ----------
    halves : tuple of Calibration
        From one half of the samples each; none of one sample, and of many.
    """

    def __init__(self, made: Calibration, judge: Judge, measure: Callable[[], Measure]) -> None:
        self._made, self._judge, self._measure = made, judge, measure
        self.halves = tuple(map(made.of_half, (0, 1))) if _in_halves(len(judge.samples)) else ()
        self._known: dict[frozenset[str], float] = {}

    def error(self, products: Sequence[Product], most: float) -> float:
        """The larger one, on all samples and on those held out; only the first where that exceeds `most`.

        Of probabilities at least what undecided inputs would err by (`undecided`).
        """
        key = frozenset(product.name for product in products)
        if key not in self._known:
            error = self._error(products, [(self._made, slice(None))])
            if self.halves and error <= most:
                first, second = self.halves
                held_out = [(first, slice(1, None, 2)), (second, slice(0, None, 2))]
                error = max(error, self._error(products, held_out))
            self._known[key] = error
        return self._known[key]

    def _error(self, products: Sequence[Product], judged: Sequence[tuple[Calibration, slice]]) -> float:
        """Of networks on some of the samples each, all of these taken together."""
        measure, undecided, step = self._measure(), self._judge.undecided(), self._made.steps(_WHOLE, 1)
        for made, some in judged:
            self._judge.tell(made.built(products), [measure], some, step, undecided)
        return max(measure.value, undecided.value)
