"""Preparation of a network for quantisation: float32 only, constants folded, scales and padding folded into layers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.passes import halves, pads, weights
from cpuconv.graph.passes.rewriting import without
from cpuconv.graph.passes.scaled import QUANTISATION
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.network.sizes.specialise import specialise
from cpuconv.quantizing.graphs import plain
from cpuconv.quantizing.graphs.quantizable import layer_of

Sizes = Mapping[str, Sequence[int]]


class Prepared(NamedTuple):
    """The network with its open sizes, and its values' shapes and dtypes for the sizes of a sample."""

    graph: Graph
    known: Mapping[str, Value]


def prepared(graph: Graph, sizes: Sizes) -> Prepared:
    """Prepare a network for quantisation; results are equal up to rounding.

    Parameters
    ----------
    graph : Graph
        The network as read.
    sizes : mapping of str to sequence of int
        Input sizes of a sample.

    Raises
    ------
    SourceError
        The network has quantised operators already, its nodes are inconsistent, or the sizes of a layer with weights
        depend on tensor values.
    """
    if any(node.op in QUANTISATION for node in graph.nodes):
        raise SourceError(f"{graph.name} must be a float32 network; it is quantised already.")
    closed = specialise(graph, sizes)
    for node in closed.nodes:
        if layer_of(closed, node) is not None and not closed.value(node.inputs[0]).concrete:
            raise SourceError(f"{node.label}: its sizes must follow from input sizes, not from values of tensors.")
    graph = _widened(_with_constants(graph), closed)
    graph = without(graph, [(node, node.inputs) for node in graph.nodes if node.op == "Identity"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuconvWarning)  # warned about above
        graph = _plain(graph, specialise(graph, sizes).values)
        graph = weights.run_without_sizes(_without_pads(graph, specialise(graph, sizes).values))
        known = specialise(graph, sizes).values
    return Prepared(_with_ranks(graph, known), known)


def _with_ranks(graph: Graph, known: Mapping[str, Value]) -> Graph:
    """Add ranks and dtypes of outputs that the model does not state; files require them."""
    stated = dict(graph.values)
    for name in graph.outputs:
        value, found = graph.value(name), known.get(name, Value())
        shape = value.shape if value.shape is not None or found.shape is None else (None,) * len(found.shape)
        stated[name] = Value(shape, value.dtype or found.dtype)
    return replace(graph, values=stated)


def _with_constants(graph: Graph) -> Graph:
    """Fold nodes that only read constants; nodes that need sizes stay."""
    fixed = {*graph.constants}
    old = []
    for node in graph.nodes:
        if node.semantics is None and node.inputs and fixed.issuperset(filter(None, node.inputs)):
            fixed.update(filter(None, node.outputs))
            old.append(node)
    rest = [node for node in graph.nodes if node not in old]
    read = {name for node in rest for name in node.inputs} | {*graph.outputs}
    asked = tuple(name for node in old for name in node.outputs if name and name in read)
    made = specialise(replace(graph, inputs=(), outputs=asked, nodes=tuple(old)).live())
    if made.nodes:  # not constant after all, such as random numbers
        return graph
    return graph.replaced(old, (), {name: made.constants[name] for name in asked}).live()


def _widened(graph: Graph, closed: Graph) -> Graph:
    """Widen float16 and bfloat16 to float32, except for inputs and outputs."""
    dtypes = {name: Value(None, value.dtype) for name, value in closed.values.items()}
    wide = halves.run(replace(graph, values={**dtypes, **graph.values}))
    casts = [node for node in wide.nodes if node.op == "Cast" and node.semantics is None]
    equal = [node for node in casts if {wide.value(name).dtype for name in (*node.inputs, *node.outputs)} == {FLOAT32}]
    made = _by_old_names(without(wide, [(node, node.inputs) for node in equal]), graph)
    return replace(made, values={name: value for name, value in graph.values.items() if name in made.values})


def _by_old_names(wide: Graph, graph: Graph) -> Graph:
    """Rename tensors of the widened graph to their original names where these are unused."""
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
    """Normalise layers by `plain`, which needs ranks."""
    ranks = {
        name: Value(None if value.shape is None else (None,) * len(value.shape), value.dtype)
        for name, value in known.items()
    }
    made = plain.run(replace(graph, values={**ranks, **graph.values}))
    return replace(made, values={name: value for name, value in graph.values.items() if name in made.values})


def _without_pads(graph: Graph, known: Mapping[str, Value]) -> Graph:
    """Fold constant padding into the following operators, unless padding depends on sizes."""
    if not any(node.op == "Pad" for node in graph.nodes):
        return graph
    if any(node.attributes.get("auto_pad", "NOTSET").startswith("SAME") for node in graph.nodes):
        return graph
    padded = pads.run(replace(graph, values={**graph.values, **known}))
    return replace(padded, values={name: value for name, value in graph.values.items() if name in padded.values})
