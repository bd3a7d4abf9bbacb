"""Conditions of If nodes that integer inputs of one element decide: they select a graph before any size is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.errors import SourceError
from cpuconv.graph import control, ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.names import Names
from cpuconv.network.control.shapes import check_one
from cpuconv.network.interpret import interpret
from cpuconv.network.sizes.specialise import specialise, taken


@dataclass(frozen=True)
class Conditions:
    """Conditions of a graph's If nodes, as a function of a few inputs.

    Attributes
    ----------
    graph : Graph
        Computes the conditions; its inputs are booleans and integers of one element.
    """

    graph: Graph

    @classmethod
    def of(cls, graph: Graph, known: Collection[str]) -> Conditions | None:
        """The conditions that can be computed; None if there are none. Inputs in `known` are constants of programs."""
        names = dict.fromkeys(node.inputs[0] for node in graph.nodes if node.op == "If" and control.is_control(node))
        found = {name: made for name in names if (made := _decider(graph, name)) and not made <= {*known}}
        if not found:
            return None
        inputs = set().union(*found.values())
        part = replace(graph, outputs=tuple(found)).live()
        part = replace(part, inputs=tuple(name for name in graph.inputs if name in inputs), defaults={})
        try:
            return cls(specialise(part, quiet=True))
        except SourceError:  # a run reports it
            return None

    def computed(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The conditions for these arrays of the inputs of `graph`."""
        return interpret(self.graph, dict(zip(self.graph.inputs, inputs, strict=True)))


def _decider(graph: Graph, name: str) -> set[str]:
    """The inputs that decide a computed condition; empty if it depends on others, or on more than arithmetic."""
    part = replace(graph, outputs=(name,)).live()
    read = {each for node in part.nodes for each in node.inputs}.intersection(graph.inputs)
    if any(node.semantics is not None or ops.draws(node) for node in part.nodes):
        return set()
    return read if all(_is_number(graph.value(each)) for each in read) else set()


def _is_number(value: Value) -> bool:
    """Whether a value is one boolean or integer."""
    kind = value.dtype is not None and value.dtype.kind in "biu"
    return kind and value.shape is not None and all(size == 1 for size in value.shape)


def with_branches(graph: Graph, conditions: Mapping[str, np.ndarray]) -> Graph:
    """Replace the If nodes that read these conditions by the nodes of the branches that they take.

    Raises
    ------
    SourceError
        A condition is not one bool.
    """
    known = {name: Value.of(array) for name, array in graph.constants.items()}
    names = Names((*graph.inputs, *known, *(name for node in graph.nodes for name in node.outputs)))
    left, nodes = deque(graph.nodes), list[Node]()
    while left:
        node = left.popleft()
        condition = conditions.get(node.inputs[0]) if node.op == "If" and control.is_control(node) else None
        if condition is None:
            nodes.append(node)
            continue
        check_one(node, Value.of(condition), np.dtype(bool), "condition")
        body, own = taken(node, bool(condition.all()), known, names)
        known |= own
        left.extendleft(reversed(body))
    arrays = {name: value.array for name, value in known.items() if value.array is not None}
    return replace(graph, nodes=tuple(nodes), constants=arrays, defaults={}).live()
