"""What of a network becomes bytes: which tensors, which share a scale, and the weights of which operators.

Products are what bytes are faster for. Operators between them follow where that is fastest (`placing`), as
`onnxruntime.quantization` has them: what moves numbers keeps the scale of its input, what is read by one Concat alone
takes its scale, and an activation that clamps is a part of the range of what stands before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.data_classes import dataclass
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes.rewriting import sole_reader
from cpuconv.quantizing.graphs.placing import Placed
from cpuconv.quantizing.graphs.products import Product
from cpuconv.quantizing.graphs.units import KEEPING


@dataclass(frozen=True)
class Plan:
    """What becomes bytes.

    Attributes
    ----------
    products : tuple of Product
        Whose weights become bytes.
    roots : mapping of str to str
        Tensors that become bytes, each with the one whose scale it has.
    readers : frozenset of int
        Nodes that read what bytes stand for, by `id`.
    written : frozenset of str
        Tensors that all others read so too.
    """

    products: tuple[Product, ...]
    roots: Mapping[str, str]
    readers: frozenset[int]
    written: frozenset[str]


def plan_of(graph: Graph, placed: Placed) -> Plan:
    """What becomes bytes where these places have bytes."""
    return Plan(placed.products, _roots(graph, placed), placed.readers, placed.written)


def _roots(graph: Graph, placed: Placed) -> dict[str, str]:
    """Whose scale each tensor has."""
    roots = {name: name for name in placed.tensors}

    def root(name: str) -> str:
        while roots[name] != name:
            name = roots[name]
        return name

    for node in graph.nodes:
        if node.op not in KEEPING or id(node) not in placed.readers:
            continue
        if node.op == "Concat":
            for name in node.inputs:
                if name in roots and roots[name] == name and sole_reader(graph, name) and node.outputs[0] in roots:
                    roots[name] = node.outputs[0]
        elif node.inputs[0] in roots:
            for name in node.outputs:
                if name in roots:
                    roots[name] = root(node.inputs[0])
    return {name: root(name) for name in roots}
