"""Limits on nodes and axes of a model: an untrusted file must not cause unbounded work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.errors import SourceError

MAX_NODES = 100_000  # per model, including subgraphs and inlined function calls
MAX_DEPTH = 16  # nesting depth of graphs within nodes and of function calls
MAX_AXES = 32  # per tensor, as in NumPy before version 2


def check_nodes(graph: Any, functions: Sequence[Any] = ()) -> None:
    """Check the number and the nesting depth of a model's nodes, with its functions inlined.

    Parameters
    ----------
    graph : onnx.GraphProto
    functions : sequence of onnx.FunctionProto

    Raises
    ------
    SourceError
        The model has more than `MAX_NODES` nodes, nests deeper than `MAX_DEPTH`, or a function calls itself.
    """
    bodies: dict[tuple[str, str], list[Any]] = {}
    for body in functions:
        bodies.setdefault((body.domain, body.name), []).extend(body.node)
    counts: dict[tuple[str, str], tuple[int, int]] = {}  # nodes and depth of each function

    def measured(nodes: Any, depth: int, callers: tuple[tuple[str, str], ...]) -> tuple[int, int]:
        """Count the nodes, and measure the nesting depth below `depth`."""
        if depth > MAX_DEPTH:
            raise SourceError(f"nodes must not nest deeper than {MAX_DEPTH} levels.")
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
            if total > MAX_NODES:
                raise SourceError(f"it must have no more than {MAX_NODES:,} nodes.")
            if depth + deepest > MAX_DEPTH:
                raise SourceError(f"nodes must not nest deeper than {MAX_DEPTH} levels.")
        return total, deepest

    measured(graph.node, 0, ())


def check_rank(rank: int, what: str) -> None:
    """Check that a tensor has at most `MAX_AXES` axes.

    Raises
    ------
    SourceError
        It has more; `what` starts the message.
    """
    if rank > MAX_AXES:
        raise SourceError(f"{what} must have no more than {MAX_AXES} axes, not {rank:,}.")
