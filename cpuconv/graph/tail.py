"""What runs behind the kernels: the nodes whose sizes depend on the elements of inputs, and all that read of them.

`NonZero` and `NonMaxSuppression` end detectors: how much they leave is known when they have run. What follows is mostly
small arithmetic on what is left; references compute it, whatever its sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cpuconv.graph.ir import Graph


class Parts(NamedTuple):
    """A specialised graph, cut.

    Attributes
    ----------
    head : Graph
        The nodes of known sizes; its outputs are those of the whole graph that are known, then what the tail reads.
    tail : Graph or None
        The other nodes, where there are any; its inputs are outputs of the head or inputs of the whole graph.
    """

    head: Graph
    tail: Graph | None


def cut(graph: Graph) -> Parts:
    """A specialised graph as the part that kernels can run and the part that `interpret` runs behind it."""
    late = [node for node in graph.nodes if any(name and graph.value(name).shape is None for name in node.outputs)]
    if not late:
        return Parts(graph, None)
    made = {name for node in late for name in node.outputs if name}
    read = dict.fromkeys(name for node in late for name in node.inputs if name and name not in made)
    needed = tuple(name for name in read if name not in graph.constants)
    known = [name for name in graph.outputs if name not in made]
    outputs = dict.fromkeys([*known, *(name for name in needed if name not in graph.inputs)])
    wanted = tuple(name for name in graph.outputs if name in made)
    tail = replace(graph, inputs=needed, outputs=wanted, nodes=tuple(late)).live()
    tail = replace(tail, values={name: graph.value(name) for name in (*needed, *tail.values)})
    head = [node for node in graph.nodes if not made.intersection(node.outputs)]
    return Parts(replace(graph, outputs=tuple(outputs), nodes=tuple(head)).live(), tail)
