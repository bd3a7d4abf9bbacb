"""Error bound for low-margin inputs of networks whose outputs are probabilities.

A saturated Softmax or Sigmoid hides errors of its input: for two classes with logits d apart, an error e of d changes
probabilities by e / (4 cosh² (d / 2)). Most inputs of a trained network, and so a few samples, have a high margin. The
error of a low-margin input is a thousand times as large. Errors of logits have one size for all inputs. Therefore they
are measured between the two most likely classes, and evaluated as if these were equally likely. The relative error of
such a row is tanh(|e| / 2), as its norm is 1 / sqrt(2); of several rows, one is assumed to have a low margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.traits import Int8
from cpuconv.network.precision.prediction_bound import UNSEEN_FACTOR, expanded

_QUANTILE = 1.959964  # standard deviations within which 95% of a normal distribution are


class Logits(NamedTuple):
    """The input of a Softmax or Sigmoid; `axis` is the axis of classes, None for a Sigmoid."""

    name: str
    axis: int | None


def logits_of(graph: Graph) -> tuple[Logits, ...]:
    """The logits of a network's outputs that are probabilities, possibly after data movement."""
    found = []
    for name in graph.outputs:
        node = graph.producer(name)
        while node is not None and traits_of(node).int8 is Int8.MOVED:
            node = graph.producer(node.inputs[0])
        if node is not None and node.op in ("Softmax", "Sigmoid"):
            found.append(Logits(node.inputs[0], node["axis"] if node.op == "Softmax" else None))
    return tuple(dict.fromkeys(found))


class LowMargin:
    """The tolerance such that 95 in 100 low-margin inputs have at most `UNSEEN_FACTOR` times its error.

    Errors of logits are assumed to be normally distributed with mean 0. In 95 of 100 cases, one more error is within t
    times the RMS of those of n samples, where t is Student's quantile for n.
    """

    def __init__(self, logits: Sequence[Logits]) -> None:
        self._logits = logits
        self._seen: dict[Logits, list[tuple[float, int]]] = {each: [] for each in logits}  # mean square, number of rows

    def add(self, exact: Mapping[str, np.ndarray], rough: Mapping[str, np.ndarray]) -> None:
        """Add the logits of a sample, computed in floating point and by a variant."""
        for each in self._logits:
            wrong = _between_likeliest(exact[each.name], rough[each.name], each.axis)
            if wrong.size:
                self._seen[each].append((float(np.square(wrong).mean()), wrong.size))

    @property
    def value(self) -> float:
        """The required tolerance for the samples so far; the largest of all outputs."""
        return max(
            (_needed(*map(np.array, zip(*seen, strict=True))) for seen in self._seen.values() if seen), default=0
        )


def _needed(squares: np.ndarray, rows: np.ndarray) -> float:
    """Required tolerance if one of the rows has a low margin: its norm is 1 / sqrt(2), that of others 1."""
    error = math.tanh(expanded(_QUANTILE, len(squares)) * math.sqrt(squares.mean()) / 2)
    return error * math.sqrt(np.mean(1 / (2 * rows - 1))) / UNSEEN_FACTOR


def _between_likeliest(exact: np.ndarray, rough: np.ndarray, axis: int | None) -> np.ndarray:
    """Errors of the margin between the two most likely classes of each row; 0 if one is impossible."""
    if exact.shape != rough.shape:
        return np.full(1, np.inf)
    right, got = exact.astype(np.float64), rough.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = got - right
        if axis is not None:
            right, wrong = (np.moveaxis(each, axis, -1) for each in (right, wrong))
            if right.shape[-1] < 2:
                return np.zeros(0)
            likeliest = np.argpartition(right, -2, -1)[..., -2:]
            wrong = np.diff(np.take_along_axis(wrong, likeliest, -1), axis=-1)
    return np.nan_to_num(wrong.ravel(), nan=0.0)
