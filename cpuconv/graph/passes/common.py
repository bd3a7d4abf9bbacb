"""Nodes that compute the same become one.

Pattern: nodes of the same operator with the same inputs and attributes, arrays among them compared by their bits. Equal
in every bit, as operators of the table always give the same for the same.
"""

from __future__ import annotations

from collections.abc import Hashable

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.notes import frozen
from cpuconv.graph.passes.rewriting import without


def run(graph: Graph) -> Graph:
    """Drop the later of equal nodes."""
    known: dict[Hashable, Node] = {}
    names: dict[str, str] = {}
    equal = []
    for node in graph.nodes:
        if node.meaning is not None:
            continue
        inputs = tuple(names.get(name, name) for name in node.inputs)
        first = known.setdefault((node.op, inputs, frozen(node.attributes), tuple(map(bool, node.outputs))), node)
        if first is not node and not (len(node.outputs) > 1 and {*node.outputs} & {*graph.outputs}):
            equal.append((node, first.outputs))
            names.update(zip(node.outputs, first.outputs, strict=True))
    return without(graph, equal)
