"""Transposed convolution as a convolution whose channels are phases of pixels: sizes and weights.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (arXiv:1609.07009).
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from cpuconv.problem.integers import divide


class Axis(NamedTuple):
    """One axis of a transposed convolution as a convolution: taps, and the outputs first … last-1 of each phase.

    Attributes
    ----------
    size, step : int
        Number of inputs, and of phases.
    before, behind : int
        Zeros around the taps of the transposed convolution.
    taps, first, last : int
    begin, end : int
        Range of the result in these outputs, with phases interleaved.
    """

    size: int
    step: int
    before: int
    behind: int
    taps: int
    first: int
    last: int
    begin: int
    end: int

    @classmethod
    def of(cls, size: int, kernel: int, step: int, near: int, outputs: int) -> Axis:
        """An axis with `size` inputs and `kernel` taps; `near` elements are cropped at the start of the full output."""
        taps, before = divide(kernel, step), -near % step
        before = before if divide(before + kernel, step) == taps else 0
        near += before
        first, last = min(near // step, taps - 1), max(size, divide(near + outputs, step))
        begin = near - first * step
        return cls(size, step, before, taps * step - kernel - before, taps, first, last, begin, begin + outputs)

    @property
    def places(self) -> int:
        """Outputs of the convolution along the axis."""
        return self.last - self.first


def phases(weight: np.ndarray, groups: int, axes: list[Axis], apart: bool) -> np.ndarray:
    """Rearrange the weights of the transposed convolution to those of the convolution.

    Parameters
    ----------
    weight : numpy.ndarray, (C, K/groups, taps...)
        Weights of the transposed convolution.
    groups : int
    axes : list[Axis]
    apart : bool
        Channels are in the order (phase of each axis, channel), for one group; else (group, channel, phase of each
        axis).

    Returns
    -------
    numpy.ndarray, (K phases, C/groups, fewer taps...)
    """
    rank, each, k = len(axes), weight.shape[0] // groups, weight.shape[1]
    full = np.pad(weight, [(0, 0), (0, 0), *((axis.before, axis.behind) for axis in axes)])
    split = full.reshape(groups, each, k, *itertools.chain(*((axis.taps, axis.step) for axis in axes)))
    tap_axes, phase_axes = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    outputs = (0, *phase_axes, 2) if apart else (0, 2, *phase_axes)
    ordered = np.flip(split, tuple(tap_axes)).transpose(*outputs, 1, *tap_axes)
    count = groups * k * math.prod(axis.step for axis in axes)
    return np.ascontiguousarray(ordered).reshape(count, each, *(axis.taps for axis in axes))
