"""Normalisation of layers for quantisation: scale factors become constants, and other parts become nodes.

Patterns: For Gemm with constant weights, alpha is folded into the weights and beta into a constant bias, in float64
with one rounding; a transposed A becomes a Transpose. For MatMul with a constant matrix, leading axes of size 1 are
removed. A Softmax of the last axis loses a Flatten before it. A bias of a convolution or Gemm that is not constant, or
that differs between rows, becomes an Add. Results are equal up to rounding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, instead, operand, sole_reader


def _gemm(graph: Graph, node: Node) -> Rewrite | None:
    x, weight = node.inputs[:2]
    matrix, added = constant(graph, weight), operand(node, 2)
    alpha, beta, bias = node["alpha"], node["beta"], constant(graph, added)
    apart = bool(added) and (bias is None or not by_column(bias))
    if matrix is None or (alpha == 1 and not node["transA"] and not apart and (beta == 1 or not added)):
        return None
    maker = Maker(graph, node)
    if node["transA"]:
        x = maker.node("Transpose", x, part="turned", perm=[1, 0])
    if alpha != 1:
        weight = maker.constant(_times(matrix, alpha), "weight")
    if bias is not None and beta != 1:
        added = maker.constant(_times(bias, beta), "bias")
    elif apart and beta != 1:
        factor = maker.constant(np.asarray(beta, matrix.dtype), "beta")
        added = maker.node("Mul", added, factor, part="bias")
    kept = {**node.attributes, "alpha": 1.0, "beta": 1.0, "transA": 0}
    y = maker.node("Gemm", x, weight, "" if apart else added, part="product" if apart else "", **kept)
    if apart:
        maker.node("Add", y, added)
    return maker.done()


def by_column(bias: np.ndarray) -> bool:
    """Whether the bias of a Gemm is equal in all rows."""
    return bias.ndim < 2 or bias.shape[0] == 1


def _times(array: np.ndarray, factor: float) -> np.ndarray:
    return np.asarray(array * np.float64(factor), array.dtype)


def _matmul(graph: Graph, node: Node) -> Rewrite | None:
    matrix, shape = constant(graph, node.inputs[1]), graph.value(node.inputs[0]).shape
    if matrix is None or matrix.ndim < 3 or shape is None or not 2 <= matrix.ndim <= len(shape):
        return None
    if max(matrix.shape[:-2]) > 1:
        return None
    maker = Maker(graph, node)
    flat = maker.constant(matrix.reshape(matrix.shape[-2:]), "weight")
    maker.node("MatMul", node.inputs[0], flat, **node.attributes)
    return maker.done()


def _convolution(graph: Graph, node: Node) -> Rewrite | None:
    weight, added = constant(graph, node.inputs[1]), operand(node, 2)
    if weight is None or not added or constant(graph, added) is not None:
        return None
    maker = Maker(graph, node)
    bias = maker.reshape(added, (-1, *[1] * (weight.ndim - 2)), "bias")
    apart = replace(node, inputs=node.inputs[:2], outputs=(maker.named("product"),))
    maker.new.append(apart)
    maker.node("Add", apart.outputs[0], bias)
    return maker.done()


def _softmax(graph: Graph, node: Node) -> Rewrite | None:
    """Undo the Flatten around a Softmax of the last axis, which files of opset 12 and older get for want of a rank."""
    x, wide = node.inputs[0], graph.producer(node.inputs[1])
    softmax, shape = graph.producer(x), graph.value(node.outputs[0]).shape
    flat = None if softmax is None or softmax.op != "Softmax" else graph.producer(softmax.inputs[0])
    if softmax is None or wide is None or flat is None or shape is None or (wide.op, flat.op) != ("Shape", "Flatten"):
        return None
    if wide.inputs != flat.inputs or (wide["start"], wide["end"]) != (0, None) or sole_reader(graph, x) is None:
        return None
    last = flat["axis"] in (-1, len(shape) - 1) and softmax["axis"] in (-1, 1)
    return instead(graph, node, "Softmax", flat.inputs[0], axis=-1) if last else None


_RULES = {"Gemm": _gemm, "MatMul": _matmul, "Conv": _convolution, "ConvTranspose": _convolution, "Reshape": _softmax}
run = Pass("plain", __doc__, (_RULES,))
