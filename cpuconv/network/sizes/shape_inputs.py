"""Inputs whose elements decide sizes, such as the shape of a Reshape: they become constants of a program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from cpuconv.graph import control
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import TABLE, traits_of


def shape_inputs(graph: Graph) -> tuple[str, ...]:
    """The inputs whose elements decide sizes, or the branch of an If.

    An input that a node reads directly as a parameter counts in any case. An input from which such parameters are
    computed counts if it is a scalar or a vector, like shapes and counts. For larger tensors, sizes are determined at
    run time (`cutting`). A computed condition of an If counts if it depends on a boolean scalar input; others are
    evaluated at run time.
    """
    read = {name for node in graph.nodes for name in _parameters(node)}
    conditions = {node.inputs[0] for node in graph.nodes if node.op == "If" and control.is_control(node)}
    sizes, flags = _sources(graph, read), _sources(graph, conditions)
    return tuple(
        name
        for name in graph.inputs
        if name in read
        or name in conditions
        or (name in sizes and _is_row(graph, name))
        or (name in flags and _is_flag(graph, name))
    )


def _sources(graph: Graph, names: Collection[str]) -> set[str]:
    """The values from whose elements the named values are computed."""
    found: set[str] = set()
    left = [*names]
    while left:
        name = left.pop()
        if name and name not in found:
            found.add(name)
            producer = graph.producer(name)
            if producer is not None and not traits_of(producer).shape_only:
                left += producer.inputs
    return found


def with_constants(graph: Graph, given: Mapping[str, np.ndarray]) -> Graph:
    """Replace some inputs of a graph by constant arrays."""
    inputs = tuple(name for name in graph.inputs if name not in given)
    return replace(graph, inputs=inputs, constants={**graph.constants, **given}) if given else graph


def _parameters(node: Node) -> Iterator[str]:
    """The inputs of a node whose elements decide the shapes of its outputs, or of nodes in its bodies."""
    for body in control.bodies(node):
        names = control.renamed(node, body)
        yield from (names[name] for name in shape_inputs(body) if name in names)
    known = TABLE.get(node.op) if node.semantics is None else None
    positions = known.parameters if known is not None else ()
    yield from (node.inputs[at] for at in positions if at < len(node.inputs))


def _is_row(graph: Graph, name: str) -> bool:
    shape = graph.value(name).shape
    return shape is not None and len(shape) <= 1


def _is_flag(graph: Graph, name: str) -> bool:
    """Whether a value is a single bool."""
    value = graph.value(name)
    return value.dtype == np.bool_ and value.shape is not None and all(size == 1 for size in value.shape)
