"""A network as it is quantised: of float32, constants computed, and what convolutions take in folded into them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.passes import halves, pads, weights
from cpuconv.graph.passes.quantised import OPERATORS
from cpuconv.graph.passes.rewriting import without
from cpuconv.kernels.binding.place import FLOAT32
from cpuconv.network.sizes.specialise import specialise
from cpuconv.quantizing.graphs import plain
from cpuconv.quantizing.graphs.products import product_of

Sizes = Mapping[str, Sequence[int]]


class Prepared(NamedTuple):
    """The network, its sizes as open as they were, and what is known of its values where they are closed."""

    graph: Graph
    known: Mapping[str, Value]


def prepared(graph: Graph, sizes: Sizes) -> Prepared:
    """The network, ready to be quantised; equal up to rounding.

    Parameters
    ----------
    graph : Graph
        As it was read.
    sizes : mapping of str to sequence of int
        Those of the inputs of a sample.

    Raises
    ------
    SourceError
        It has quantised operators already, its nodes do not fit together, or the sizes of a layer that has weights are
        found when the network runs.
    """
    if any(node.op in OPERATORS for node in graph.nodes):
        raise SourceError(f"{graph.name} must be a network of floats; it is quantised already.")
    closed = specialise(graph, sizes)
    for node in closed.nodes:
        if product_of(closed, node) is not None and not closed.value(node.inputs[0]).concrete:
            raise SourceError(f"{node.label}: its sizes must follow from those of inputs, not be found in the run.")
    graph = _widened(_with_constants(graph), closed)
    graph = without(graph, [(node, node.inputs) for node in graph.nodes if node.op == "Identity"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuconvWarning)  # told once, above
        graph = _plain(graph, specialise(graph, sizes).values)
        graph = weights.run_without_sizes(_without_pads(graph, specialise(graph, sizes).values))
        known = specialise(graph, sizes).values
    return Prepared(_with_ranks(graph, known), known)


def _with_ranks(graph: Graph, known: Mapping[str, Value]) -> Graph:
    """The graph with ranks and dtypes of outputs that the model does not state, as files must."""
    stated = dict(graph.values)
    for name in graph.outputs:
        value, found = graph.value(name), known.get(name, Value())
        shape = value.shape if value.shape is not None or found.shape is None else (None,) * len(found.shape)
        stated[name] = Value(shape, value.dtype or found.dtype)
    return replace(graph, values=stated)


def _with_constants(graph: Graph) -> Graph:
    """The graph without nodes that compute with constants alone; those that need sizes stay."""
    fixed = {*graph.constants}
    old = []
    for node in graph.nodes:
        if node.meaning is None and node.inputs and fixed.issuperset(filter(None, node.inputs)):
            fixed.update(filter(None, node.outputs))
            old.append(node)
    rest = [node for node in graph.nodes if node not in old]
    read = {name for node in rest for name in node.inputs} | {*graph.outputs}
    asked = tuple(name for node in old for name in node.outputs if name and name in read)
    made = specialise(replace(graph, inputs=(), outputs=asked, nodes=tuple(old)).live())
    if made.nodes:  # what is no constant to the end, such as numbers drawn at random
        return graph
    return graph.replaced(old, (), {name: made.constants[name] for name in asked}).live()


def _widened(graph: Graph, closed: Graph) -> Graph:
    """The graph with float32 in the place of shorter floats, but for its inputs and outputs."""
    dtypes = {name: Value(None, value.dtype) for name, value in closed.values.items()}
    wide = halves.run(replace(graph, values={**dtypes, **graph.values}))
    casts = [node for node in wide.nodes if node.op == "Cast" and node.meaning is None]
    equal = [node for node in casts if {wide.value(name).dtype for name in (*node.inputs, *node.outputs)} == {FLOAT32}]
    made = _by_old_names(without(wide, [(node, node.inputs) for node in equal]), graph)
    return replace(made, values={name: value for name, value in graph.values.items() if name in made.values})


def _by_old_names(wide: Graph, graph: Graph) -> Graph:
    """The widened graph with names of the graph that it was made of, where they are free."""
    if wide is graph:
        return graph
    own = {*graph.constants, *(name for node in graph.nodes for name in node.outputs)}
    taken = {*wide.inputs, *wide.outputs, *wide.constants, *(name for node in wide.nodes for name in node.outputs)}
    names = {halves.wide_name(name): name for name in own - taken}
    return replace(
        wide,
        nodes=tuple(node.reads(names).writes(names) for node in wide.nodes),
        constants={names.get(name, name): array for name, array in wide.constants.items()},
    )


def _plain(graph: Graph, known: Mapping[str, Value]) -> Graph:
    """The graph with products as `plain` has them, which asks for ranks."""
    ranks = {
        name: Value(None if value.shape is None else (None,) * len(value.shape), value.dtype)
        for name, value in known.items()
    }
    made = plain.run(replace(graph, values={**ranks, **graph.values}))
    return replace(made, values={name: value for name, value in graph.values.items() if name in made.values})


def _without_pads(graph: Graph, known: Mapping[str, Value]) -> Graph:
    """The graph with constant padding inside the operators behind it, unless what these add depends on sizes."""
    if not any(node.op == "Pad" for node in graph.nodes):
        return graph
    if any(node.attributes.get("auto_pad", "NOTSET").startswith("SAME") for node in graph.nodes):
        return graph
    padded = pads.run(replace(graph, values={**graph.values, **known}))
    return replace(padded, values={name: value for name, value in graph.values.items() if name in padded.values})
