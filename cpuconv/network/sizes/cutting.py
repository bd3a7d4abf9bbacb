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
from cpuconv.names import Names
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


_BOUNDED = {"NonMaxSuppression": ("BoundedNonMaxSuppression", 0), "NonZero": ("BoundedNonZero", 1)}
"""Operators with results of sizes by value: the one that computes as many as there may be, and their axis."""


_MAX_BYTES = 1 << 27  # of a result by its upper bound


def _bounded(graph: Graph) -> Graph:
    """Compute results of sizes by value with their upper bound of sizes, and cut them to their size afterwards."""
    nodes, values = [], dict(graph.values)
    names = Names((*graph.inputs, *graph.constants, *(name for node in graph.nodes for name in node.outputs)))
    for node in graph.nodes:
        name, axis = _BOUNDED.get(node.op, ("", 0))
        inputs = graph.operands(node)
        if not name or node.semantics is not None or any(each and not each.concrete for each in inputs):
            nodes.append(node)
            continue
        op, outputs = ops.TABLE[name], [names.fresh(f"{node.outputs[0]} {part}") for part in ("bound", "count")]
        made = op.node(node.inputs, outputs, node.origin, **node.attributes)
        found = op.infer(made, inputs)
        if found[0].shape is None or found[0].nbytes > _MAX_BYTES:  # no constant has the bound, or it is too large
            nodes.append(node)
            continue
        values.update(zip(outputs, found, strict=True))
        nodes += [made, ops.TABLE["Leading"].node(outputs, node.outputs, node.origin, axis=axis)]
    return replace(graph, nodes=tuple(nodes), values=values)


def cut(graph: Graph) -> Parts:
    """Cut a specialised graph into a part for kernels and a part that `interpret` runs after it."""
    if any(node.op in _BOUNDED for node in graph.nodes):
        graph = _bounded(graph)
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
