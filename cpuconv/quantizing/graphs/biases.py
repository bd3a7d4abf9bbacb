"""Biases after int8 MatMuls, in a form for which other engines use integer kernels.

ONNX Runtime fuses a MatMul and a following Add of a vector to a Gemm, before it looks for integer operators. That Gemm
is float32, and its weights are dequantised in every run. It does not fuse a bias of as many axes as the result, which
is equivalent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.quantizing.graphs.building import Names


def reshape_biases(graph: Graph, known: Mapping[str, Value]) -> Graph:
    """Reshape biases that are added to int8 MatMuls to the rank of the result.

    Parameters
    ----------
    graph : Graph
        The quantised network.
    known : mapping of str to Value
        Shapes and dtypes of its tensors, by name.
    """
    names, nodes = Names(graph), []
    for node in graph.nodes:
        for at in (0, 1) if node.op == "Add" and node.semantics is None else ():
            bias, other = node.inputs[at], node.inputs[1 - at]
            array, rank = graph.constants.get(bias), _rank_of_matmul(graph, other, known)
            if array is not None and array.ndim == 1 and rank > 2:
                wide = names.constant(array.reshape((1,) * (rank - 1) + array.shape), f"{bias}.wide{rank}")
                node = replace(node, inputs=(wide, other) if at == 0 else (other, wide))
                break
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **names.constants}).live()


def _rank_of_matmul(graph: Graph, name: str, known: Mapping[str, Value]) -> int:
    """Rank of the output of a MatMul with dequantised weights; 0 for other tensors."""
    node, value = graph.producer(name), known.get(name)
    if node is None or node.op != "MatMul" or value is None or value.shape is None:
        return 0
    weight: Node | None = graph.producer(node.inputs[1])
    return len(value.shape) if weight is not None and weight.op == "DequantizeLinear" else 0
