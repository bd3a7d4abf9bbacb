"""Bounds on nodes and axes of a model: a file from anywhere must not take all time of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.errors import SourceError

MOST_NODES = 100_000  # of a model, those of its subgraphs and calls of its functions among them
MOST_DEPTH = 16  # graphs within nodes, and functions within functions
MOST_AXES = 32  # of a tensor, as in NumPy before version 2


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


def check_rank(rank: int, what: str) -> None:
    """See that a tensor has no more than `MOST_AXES` axes.

    Raises
    ------
    SourceError
        It has; `what` begins the message.
    """
    if rank > MOST_AXES:
        raise SourceError(f"{what} must have no more than {MOST_AXES} axes, not {rank:,}.")
