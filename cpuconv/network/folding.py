"""What networks compute may be: bounds on values that nodes make, and on what is computed of constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Node, Value
from cpuconv.memory.room import SMALL, check_bytes, check_room

MOST_STEPS = 200_000  # nodes within nodes that are computed of constants, counted each time: seconds of the evaluator
_FOLDED = 0.25  # of free memory for constants that are computed, which take as much again on the way


def check_values(node: Node, values: Sequence[Value]) -> None:
    """See that the outputs of a node may be tensors: no size is negative, and each fits into memory.

    Raises
    ------
    SourceError
        One may not.
    """
    for value in values:
        if not value.concrete or value.shape is None:
            continue
        if any(isinstance(size, int) and size < 0 for size in value.shape):
            raise SourceError(f"{node.label}: an output of shape {value} has a negative size.")
        if value.nbytes > SMALL:
            check_bytes(value.nbytes, f"{node.label}: an output of shape {value}")


def check_results(node: Node, shapes: Sequence[Sequence[Any] | None], results: Sequence[np.ndarray]) -> None:
    """See that what a node gives is of the shapes that its rule says, as far as it says any.

    Raises
    ------
    SourceError
        A result is not.
    """
    for shape, result in zip(shapes, results, strict=False):
        value = Value(None if shape is None else tuple(shape), result.dtype)
        if not value.fits(result.shape):
            raise SourceError(f"{node.label}: an output must be {value} by its inputs, and comes as {result.shape}.")


class Folding:
    """What is computed of constants when a network is made ready: its bytes, and the nodes within nodes that run."""

    def __init__(self) -> None:
        self._bytes = self._steps = 0
        self._room: float | None = None

    def take(self, node: Node, values: Sequence[Value]) -> None:
        """Count the outputs of a node, before they are computed.

        Raises
        ------
        SourceError
            They do not fit beside those that are there already.
        """
        self._add(node, sum(value.nbytes for value in values if value.concrete))

    def step(self, node: Node, steps: int, size: int) -> None:
        """Count `steps` nodes of a graph within a node, which are computed once, and `size` bytes of its results.

        Raises
        ------
        SourceError
            They are more than `MOST_STEPS`, as those of a `Loop` that does not end are, or do not fit into memory.
        """
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise SourceError(
                f"{node.label}: what is computed of constants must take no more than {MOST_STEPS:,} steps, nodes of a"
                " Loop counted each time."
            )
        self._add(node, size)

    def _add(self, node: Node, size: int) -> None:
        self._bytes += size
        if self._bytes > SMALL:
            self._room = _FOLDED * free_bytes() if self._room is None else self._room
            check_room(self._bytes, self._room, f"{node.label}: what is computed of constants")
