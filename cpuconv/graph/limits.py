"""Bounds on what a model may ask for: a file from anywhere takes neither all memory nor all time of a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Node, Value

MOST_NODES = 100_000  # of a model, those of its subgraphs and calls of its functions among them
MOST_DEPTH = 16  # graphs within nodes, and functions within functions
MOST_STEPS = 200_000  # nodes within nodes that are computed of constants, counted each time: seconds of the evaluator
SMALL = 1 << 24  # bytes that are not worth a look at what is free
_FOLDED = 0.25  # of free memory for constants that are computed, which take as much again on the way


def check_nodes(graph: Any, functions: Sequence[Any] = ()) -> None:
    """See that a model has not too many nodes, and none nested too deep, once its functions are inlined.

    Parameters
    ----------
    graph : onnx.GraphProto
    functions : sequence of onnx.FunctionProto

    Raises
    ------
    SourceError
        It has more than `MOST_NODES`, nests deeper than `MOST_DEPTH`, or a function calls itself.
    """
    bodies: dict[tuple[str, str], list[Any]] = {}
    for body in functions:
        bodies.setdefault((body.domain, body.name), []).extend(body.node)
    counts: dict[tuple[str, str], tuple[int, int]] = {}  # of functions: nodes and depth

    def measured(nodes: Any, depth: int, callers: tuple[tuple[str, str], ...]) -> tuple[int, int]:
        """How many nodes there are, and how far they nest below `depth`."""
        if depth > MOST_DEPTH:
            raise SourceError(f"nodes must not nest deeper than {MOST_DEPTH} levels.")
        total, deepest = len(nodes), 0
        for node in nodes:
            parts = [
                measured(inner.node, depth + 1, callers)
                for attribute in node.attribute
                for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs)
            ]
            name = node.domain, node.op_type
            if name in callers:
                raise SourceError(f"the function {node.op_type!r} calls itself.")
            if name in bodies:
                if name not in counts:
                    counts[name] = measured(bodies[name], depth + 1, (*callers, name))
                parts.append(counts[name])
            total += sum(count for count, _ in parts)
            deepest = max([deepest, *(1 + below for _, below in parts)])
            if total > MOST_NODES:
                raise SourceError(f"it must have no more than {MOST_NODES:,} nodes.")
            if depth + deepest > MOST_DEPTH:
                raise SourceError(f"nodes must not nest deeper than {MOST_DEPTH} levels.")
        return total, deepest

    measured(graph.node, 0, ())


def check_bytes(size: int, what: str) -> None:
    """See that something fits into the memory that is free now.

    Raises
    ------
    SourceError
        It does not; `what` begins the message.
    """
    if size > SMALL:
        _check(size, free_bytes(), what)


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
        check_bytes(nbytes(value), f"{node.label}: an output of shape {value}")


def nbytes(value: Value) -> int:
    """Bytes of a tensor of known sizes."""
    assert value.shape is not None and value.dtype is not None
    return math.prod(int(size or 0) for size in value.shape) * value.dtype.itemsize


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
        self._add(node, sum(nbytes(value) for value in values if value.concrete))

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
            _check(self._bytes, self._room, f"{node.label}: what is computed of constants")


def _check(size: int, room: float, what: str) -> None:
    if size > room:
        raise SourceError(f"{what} takes {size / 1e9:.4g} GB of memory, where {room / 1e9:.4g} GB may be taken.")
