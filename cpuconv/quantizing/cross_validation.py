"""Errors of int8 networks on samples that were not used for calibration.

A network's error is smaller on its calibration samples than on others. With few samples, two more networks are
therefore calibrated, on every second sample each. Each is judged on the samples of the other (cross-fitting). The
network that runs is calibrated on all samples, and is judged too. With many samples, common properties outweigh those
of single samples, and only this network is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cpuconv.quantizing.calibrating import Calibration
from cpuconv.quantizing.errors import Judge, Measure
from cpuconv.quantizing.graphs.attention import Quantizable

MANY = 33  # minimum number of samples for judging only the final network
_WHOLE = "measuring the error"  # progress step: error of the whole network


def calibration_sample_count(samples: int) -> int:
    """Number of samples on which each judged network is calibrated."""
    return samples // 2 if _in_halves(samples) else samples


def _in_halves(samples: int) -> bool:
    return 1 < samples < MANY


class CrossValidation:
    """Judge of the mixtures of one network.

    Parameters
    ----------
    made : Calibration
        Calibration on all samples.
    judge : Judge
        Judge on all samples.
    measure : callable
        Makes a `Measure`, which takes samples and returns the error.
    tolerance : float

    Attributes
    ----------
    halves : tuple of Calibration
        Calibrations on one half of the samples each; empty for one sample, and for many.
    """

    def __init__(self, made: Calibration, judge: Judge, measure: Callable[[], Measure], tolerance: float) -> None:
        self._made, self._judge, self._measure, self._tolerance = made, judge, measure, tolerance
        self.halves = tuple(map(made.of_half, (0, 1))) if _in_halves(len(judge.samples)) else ()

    def error(self, layers: Sequence[Quantizable]) -> float:
        """Maximum of the errors on all samples and on held-out samples; only the first if it exceeds the tolerance.

        For probabilities, it is at least the error of low-margin inputs (`undecided`).
        """
        error = self._error(layers, [(self._made, slice(None))])
        if self.halves and error <= self._tolerance:
            first, second = self.halves
            held_out = [(first, slice(1, None, 2)), (second, slice(0, None, 2))]
            error = max(error, self._error(layers, held_out))
        return error

    def _error(self, layers: Sequence[Quantizable], judged: Sequence[tuple[Calibration, slice]]) -> float:
        """Error of networks on some of the samples each, taken together; far above the tolerance, of the first ones."""
        measure, undecided, step = self._measure(), self._judge.undecided(), self._made.steps(_WHOLE, 1)
        exceeded = partial(measure.exceeds, self._tolerance)
        for made, some in judged:
            if not exceeded():
                self._judge.measure(made.built(layers), [measure], some, step, undecided, exceeded)
        return max(measure.value, undecided.value)
