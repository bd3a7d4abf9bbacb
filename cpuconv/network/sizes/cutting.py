"""Cut off the nodes whose sizes depend on elements of inputs, and all nodes that read them.

`NonZero` and `NonMaxSuppression` end detectors; the sizes of their results are known only after they have run. They are
followed mostly by small element-wise operations, with other sizes in each run. References compute these in less time
than a program for the sizes would take to build. If there are expensive operators (`_is_heavy`) among them, they
become a network of their own, with programs for the sizes that occur.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.reading.evaluated import SEQUENCES


class Parts(NamedTuple):
    """A specialised graph in two parts.

    Attributes
    ----------
    head : Graph
        The nodes with known sizes; its outputs are the known outputs of the whole graph, then the inputs of the suffix.
    suffix : Graph or None
        The other nodes, if any; its inputs are outputs of the head or inputs of the whole graph.
    """

    head: Graph
    suffix: Graph | None


def cut(graph: Graph) -> Parts:
    """Cut a specialised graph into a part for kernels and a part that `interpret` runs after it."""
    late = [node for node in graph.nodes if any(name and graph.value(name).shape is None for name in node.outputs)]
    if not late:
        return Parts(graph, None)
    made = {name for node in late for name in node.outputs if name}
    read = dict.fromkeys(name for node in late for name in node.inputs if name and name not in made)
    needed = tuple(name for name in read if name not in graph.constants)
    known = [name for name in graph.outputs if name not in made]
    outputs = dict.fromkeys([*known, *(name for name in needed if name not in graph.inputs)])
    wanted = tuple(name for name in graph.outputs if name in made)
    suffix = replace(graph, inputs=needed, outputs=wanted, nodes=tuple(late)).live()
    suffix = replace(suffix, values={name: graph.value(name) for name in (*needed, *suffix.values)})
    head = [node for node in graph.nodes if not made.intersection(node.outputs)]
    return Parts(replace(graph, outputs=tuple(outputs), nodes=tuple(head)).live(), suffix)


class Stages(NamedTuple):
    """The dynamic suffix of a program in two parts.

    Attributes
    ----------
    first : Graph
        The part that references compute.
    rest : Graph or None
        The part that becomes a network after `first` has run; its inputs are outputs of `first` or of the whole graph.
    """

    first: Graph
    rest: Graph | None


def stages(suffix: Graph) -> Stages:
    """Divide the dynamic suffix into a part for references, and a part for kernels with the resulting sizes."""
    made = {name for node in suffix.nodes for name in node.outputs if name}
    first = [node for node in suffix.nodes if made.isdisjoint(node.inputs) and _decides(suffix, node)]
    rest = [node for node in suffix.nodes if node not in first]
    sequences = any(node.semantics is not None and node.op in SEQUENCES for node in suffix.nodes)
    if sequences or not any(map(_is_heavy, rest)):  # programs have tensors alone
        return Stages(suffix, None)
    inner = {name for node in rest for name in node.outputs if name}
    read = dict.fromkeys(name for node in rest for name in node.inputs if name and name not in inner)
    inputs = tuple(name for name in read if name not in suffix.constants)
    found = {name for node in first for name in node.outputs if name}
    outputs = tuple(dict.fromkeys(name for name in (*suffix.outputs, *inputs) if name in found))
    wanted = tuple(name for name in suffix.outputs if name in inner)
    used = dict.fromkeys(name for node in first for name in node.inputs if name and name not in suffix.constants)
    head = replace(suffix, inputs=tuple(used), outputs=outputs, nodes=tuple(first)).live()
    behind = replace(suffix, inputs=inputs, outputs=wanted, nodes=tuple(rest)).live()
    known = {name: suffix.value(name) for name in (*inputs, *used)}
    return Stages(_with(head, known), _with(behind, known))


def _is_heavy(node: Node) -> bool:
    """Whether a node does much for every element."""
    op = ops.traits_of(node)
    return op.product or op.window


def _decides(graph: Graph, node: Node) -> bool:
    """Whether a node determines sizes from its data, and not from the elements of a parameter input."""
    positions = ops.TABLE[node.op].parameters if node.semantics is None else ()
    told = (node.inputs[at] for at in positions if at < len(node.inputs))
    return all(not name or name in graph.constants for name in told)


def _with(graph: Graph, values: Mapping[str, Value]) -> Graph:
    """Add known shapes and dtypes of the inputs to a graph."""
    own = {name: value for name, value in values.items() if name in graph.inputs}
    return replace(graph, values={**graph.values, **own})
