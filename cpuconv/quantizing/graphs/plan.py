"""Quantisation plan of a network: the quantised tensors, the tensors that share a scale, and the int8 layers.

Layers are quantised where int8 is faster. Operators between them follow where that is fastest (`assignment`), by the
rules of `onnxruntime.quantization`: data movement keeps the scale of its input. A tensor that only one Concat
reads has the scale of the Concat. A clamp narrows the range of its input.
"""

from __future__ import annotations

from collections.abc import Mapping

from baselib.data_classes import dataclass
from cpuconv.graph.ir import Graph
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.traits import Int8
from cpuconv.graph.passes.rewriting import sole_reader
from cpuconv.quantizing.graphs.assignment import Assignment
from cpuconv.quantizing.graphs.attention import Quantizable


@dataclass(frozen=True)
class Plan:
    """Quantisation plan.

    Attributes
    ----------
    layers : tuple of Quantizable
        Int8 layers.
    roots : mapping of str to str
        Quantised tensors, each with the tensor whose scale it has.
    readers : frozenset of int
        Nodes that read dequantised values, by `id`.
    written : frozenset of str
        Tensors whose other readers read dequantised values too.
    """

    layers: tuple[Quantizable, ...]
    roots: Mapping[str, str]
    readers: frozenset[int]
    written: frozenset[str]


def plan_of(graph: Graph, assignment: Assignment) -> Plan:
    """Make the quantisation plan of an assignment."""
    return Plan(assignment.layers, _roots(graph, assignment), assignment.readers, assignment.written)


def _roots(graph: Graph, assignment: Assignment) -> dict[str, str]:
    """Map each quantised tensor to the tensor whose scale it has."""
    roots = {name: name for name in assignment.tensors}

    def root(name: str) -> str:
        while roots[name] != name:
            name = roots[name]
        return name

    for node in graph.nodes:
        if traits_of(node).int8 < Int8.SAME_SCALE or id(node) not in assignment.readers:
            continue
        if traits_of(node).joins:
            for name in node.inputs:
                if name in roots and roots[name] == name and sole_reader(graph, name) and node.outputs[0] in roots:
                    roots[name] = node.outputs[0]
        elif node.inputs[0] in roots:
            for name in node.outputs:
                if name in roots:
                    roots[name] = root(node.inputs[0])
    return {name: root(name) for name in roots}
