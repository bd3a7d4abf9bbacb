"""What an undecided input would err by, where outputs are probabilities.

A Softmax or Sigmoid that is sure hides what is wrong with its input: of two classes with logits d apart, an error e of
d changes probabilities by e / (4 cosh² (d / 2)). Most inputs of a trained network are sure, and so are a few samples,
while one that is not errs a thousand times as much. What is wrong with the logits is of one size for all of them: so
it is measured there, between the two likeliest classes, and counted as if these had been as likely. The relative error
of such a row is tanh(|e| / 2) then, as its norm is 1 / sqrt(2); of several rows, one is taken to be undecided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph
from cpuconv.graph.passes.quantised import MOVES
from cpuconv.network.precision.to_come import BEYOND, expanded

_QUANTILE = 1.959964  # of a normal distribution: 95% are nearer to its mean


class Logits(NamedTuple):
    """The input of the function that makes probabilities of it; `axis` is that of classes, None of a Sigmoid."""

    name: str
    axis: int | None


def logits_of(graph: Graph) -> tuple[Logits, ...]:
    """Those of a network's outputs that are probabilities, or moved ones."""
    found = []
    for name in graph.outputs:
        node = graph.producer(name)
        while node is not None and node.op in MOVES:
            node = graph.producer(node.inputs[0])
        if node is not None and node.op in ("Softmax", "Sigmoid"):
            found.append(Logits(node.inputs[0], node["axis"] if node.op == "Softmax" else None))
    return tuple(dict.fromkeys(found))


class Undecided:
    """What a tolerance needs, so that of undecided inputs 95 in 100 err by at most `BEYOND` times it.

    Errors of logits are taken to be normal, of the mean 0. One more is within t roots of the mean square of those of n
    samples in 95 of 100 cases, t being Student's quantile for n.
    """

    def __init__(self, logits: Sequence[Logits]) -> None:
        self._logits = logits
        self._seen: dict[Logits, list[tuple[float, int]]] = {each: [] for each in logits}  # mean squares, and rows

    def add(self, exact: Mapping[str, np.ndarray], rough: Mapping[str, np.ndarray]) -> None:
        """Take in the logits of a sample, by floats and by a variant."""
        for each in self._logits:
            wrong = _between_likeliest(exact[each.name], rough[each.name], each.axis)
            if wrong.size:
                self._seen[each].append((float(np.square(wrong).mean()), wrong.size))

    @property
    def value(self) -> float:
        """Of the samples so far; the largest of all outputs."""
        return max(
            (_needed(*map(np.array, zip(*seen, strict=True))) for seen in self._seen.values() if seen), default=0
        )


def _needed(squares: np.ndarray, rows: np.ndarray) -> float:
    """Where one of so many rows is undecided: its norm is 1 / sqrt(2), that of others 1."""
    error = math.tanh(expanded(_QUANTILE, len(squares)) * math.sqrt(squares.mean()) / 2)
    return error * math.sqrt(np.mean(1 / (2 * rows - 1))) / BEYOND


def _between_likeliest(exact: np.ndarray, rough: np.ndarray, axis: int | None) -> np.ndarray:
    """What is wrong with how far apart the two likeliest classes of each row are; 0 where one is impossible."""
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
