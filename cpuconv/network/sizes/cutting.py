"""Where a graph is cut: off come the nodes whose sizes depend on the elements of inputs, and all that read of them.

`NonZero` and `NonMaxSuppression` end detectors: how much they leave is known when they have run. What follows is mostly
small arithmetic on what is left, other sizes every time; references compute it sooner than a program for these sizes is
made. Where there are operators among it that do much for every element (`WORTHWHILE`), it is a network of its own, with
programs for the sizes that are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.reading.evaluated import SEQUENCES

WORTHWHILE = frozenset(
    {"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "GridSample", "LSTM", "MatMul", "RNN", "Resize"}
    | {"AveragePool", "LpPool", "MaxPool"}
)


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


class Stages(NamedTuple):
    """What runs behind a program, in two parts.

    Attributes
    ----------
    first : Graph
        What references run.
    rest : Graph or None
        What is a network of its own, once that has run; its inputs are outputs of `first` or inputs of the whole.
    """

    first: Graph
    rest: Graph | None


def stages(tail: Graph) -> Stages:
    """The tail of a graph in two parts: that of references, and that of kernels, for the sizes that are found."""
    made = {name for node in tail.nodes for name in node.outputs if name}
    first = [node for node in tail.nodes if made.isdisjoint(node.inputs) and _decides(tail, node)]
    rest = [node for node in tail.nodes if node not in first]
    sequences = any(node.meaning is not None and node.op in SEQUENCES for node in tail.nodes)
    if sequences or not any(node.op in WORTHWHILE for node in rest):  # programs have tensors alone
        return Stages(tail, None)
    inner = {name for node in rest for name in node.outputs if name}
    read = dict.fromkeys(name for node in rest for name in node.inputs if name and name not in inner)
    inputs = tuple(name for name in read if name not in tail.constants)
    found = {name for node in first for name in node.outputs if name}
    outputs = tuple(dict.fromkeys(name for name in (*tail.outputs, *inputs) if name in found))
    wanted = tuple(name for name in tail.outputs if name in inner)
    used = dict.fromkeys(name for node in first for name in node.inputs if name and name not in tail.constants)
    head = replace(tail, inputs=tuple(used), outputs=outputs, nodes=tuple(first)).live()
    behind = replace(tail, inputs=inputs, outputs=wanted, nodes=tuple(rest)).live()
    known = {name: tail.value(name) for name in (*inputs, *used)}
    return Stages(_with(head, known), _with(behind, known))


def _decides(graph: Graph, node: Node) -> bool:
    """Whether a node finds sizes itself, rather than being told them by the elements of another value."""
    positions = ops.TABLE[node.op].parameters if node.meaning is None else ()
    told = (node.inputs[at] for at in positions if at < len(node.inputs))
    return all(not name or name in graph.constants for name in told)


def _with(graph: Graph, values: Mapping[str, Value]) -> Graph:
    """The graph, with what is known of its inputs."""
    own = {name: value for name, value in values.items() if name in graph.inputs}
    return replace(graph, values={**graph.values, **own})
