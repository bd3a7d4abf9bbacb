"""Convert matrix multiplications with a constant to Linear.

Patterns: MatMul(x, W) with x of rank 2 or more; Gemm(A, W, C) without transA, with C absent or constant and equal in
all rows. alpha, beta and the transposition are folded into the constants, in float64 with one rounding: equal up to
rounding, and in every bit if alpha and beta are 1.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, is_float, operand, per_channel, shape_of


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return array if factor == 1 else (array.astype(np.float64) * factor).astype(array.dtype)


def _matmul(graph: Graph, node: Node) -> Rewrite | None:
    shape, matrix = shape_of(graph, node.inputs[0]), constant(graph, node.inputs[1])
    if matrix is None or matrix.ndim < 2 or len(shape) < max(2, matrix.ndim) or max(matrix.shape[:-2], default=1) > 1:
        return None
    return _made(graph, node, matrix.reshape(matrix.shape[-2:]), None)


def _gemm(graph: Graph, node: Node) -> Rewrite | None:
    matrix, added = constant(graph, node.inputs[1]), operand(node, 2)
    if matrix is None or node["transA"]:
        return None
    matrix = _scaled(matrix.T if node["transB"] else matrix, node["alpha"])
    if not added:
        return _made(graph, node, matrix, None)
    array = constant(graph, added)
    bias = None if array is None else per_channel(array, shape_of(graph, node.outputs[0]), 1)
    return None if bias is None else _made(graph, node, matrix, (bias * node["beta"]).astype(matrix.dtype))


def _made(graph: Graph, node: Node, matrix: np.ndarray, bias: np.ndarray | None) -> Rewrite | None:
    if not is_float(graph, node.inputs[0]):
        return None
    maker = Maker(graph, node)
    kept = matrix is constant(graph, node.inputs[1])
    weight = node.inputs[1] if kept else maker.constant(matrix, "weight")
    maker.node("Linear", node.inputs[0], weight, "" if bias is None else maker.constant(bias, "bias"))
    return maker.done()


# Other rewrites make MatMul of Einsum, and of MatMulInteger that no solver supports.
run = Pass("linear", __doc__, ({"MatMul": _matmul, "Gemm": _gemm},), needs=("decomposed", "integers"))
