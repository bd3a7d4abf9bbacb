"""Biases behind products of bytes, as files have them so that other engines multiply integers.

ONNX Runtime joins a MatMul and the Add of a vector behind it to a Gemm, before it looks for integers: that Gemm is one
of floats, and its weights are dequantised in every run. A bias of as many axes as the result is none such, and means
the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.quantizing.graphs.building import Names


def with_biases_apart(graph: Graph, known: Mapping[str, Value]) -> Graph:
    """The same network; biases added to matrices of bytes have the rank of what they are added to.

    Parameters
    ----------
    graph : Graph
        Of bytes.
    known : mapping of str to Value
        What is known of its tensors, by name.
    """
    names, nodes = Names(graph), []
    for node in graph.nodes:
        for at in (0, 1) if node.op == "Add" and node.meaning is None else ():
            bias, other = node.inputs[at], node.inputs[1 - at]
            array, rank = graph.constants.get(bias), _rank_of_product(graph, other, known)
            if array is not None and array.ndim == 1 and rank > 2:
                wide = names.constant(array.reshape((1,) * (rank - 1) + array.shape), f"{bias}.wide{rank}")
                node = replace(node, inputs=(wide, other) if at == 0 else (other, wide))
                break
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **names.constants}).live()


def _rank_of_product(graph: Graph, name: str, known: Mapping[str, Value]) -> int:
    """Of what a MatMul of dequantised weights gives; 0 of anything else."""
    node, value = graph.producer(name), known.get(name)
    if node is None or node.op != "MatMul" or value is None or value.shape is None:
        return 0
    weight: Node | None = graph.producer(node.inputs[1])
    return len(value.shape) if weight is not None and weight.op == "DequantizeLinear" else 0
