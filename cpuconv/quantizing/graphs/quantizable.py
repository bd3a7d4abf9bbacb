"""Layers with constant weights that may be int8: convolutions and matrix multiplications."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import constant, operand
from cpuconv.quantizing.graphs.plain import by_column

_FLOAT32 = np.dtype(np.float32)
_RANKS = (3, 4, 5)  # ranks of convolution weights


class QuantizableLayer(NamedTuple):
    """A quantisable layer: a node that multiplies by constant weights.

    `axis` is the output-channel axis of its weights (per group for ConvTranspose), `channels` that of its output.
    """

    node: Node
    weight: np.ndarray
    bias: np.ndarray | None
    axis: int
    channels: int

    @property
    def op(self) -> str:
        """Operator of the layer."""
        return self.node.op

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes that compute the layer; the last one is `node`."""
        return (self.node,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Data inputs, which are int8 if the layer is."""
        return self.node.inputs[:1]

    @property
    def inner(self) -> tuple[str, ...]:
        """Tensors within the layer that are int8 if the layer is."""
        return ()

    @property
    def has_bias(self) -> bool:
        """Whether the node may have a bias."""
        return self.op != "MatMul"

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        own: int = self.weight.shape[self.axis]
        return own * self.node["group"] if self.node.op == "ConvTranspose" else own

    @property
    def name(self) -> str:
        """Name of the layer in the model."""
        return self.node.origin or self.node.outputs[0]


def layer_of(graph: Graph, node: Node) -> QuantizableLayer | None:
    """View the node as a quantisable layer; None if it is none, or its weights are not constant, finite float32."""
    found = _LAYERS.get(node.op) if node.semantics is None else None
    weight = constant(graph, operand(node, 1))
    if found is None or weight is None or weight.dtype != _FLOAT32 or not np.isfinite(weight).all():
        return None
    return found(graph, node, weight)


def _conv(graph: Graph, node: Node, weight: np.ndarray) -> QuantizableLayer | None:
    name = operand(node, 2)
    bias = constant(graph, name)
    if weight.ndim not in _RANKS or (name and bias is None) or node["activation"] or operand(node, 3):
        return None
    return QuantizableLayer(node, weight, bias, 0, 1)


def _transposed(graph: Graph, node: Node, weight: np.ndarray) -> QuantizableLayer | None:
    """Weights (C, K / groups, …): one scale is shared by the channels of one index in all groups."""
    name = operand(node, 2)
    bias = constant(graph, name)
    if weight.ndim not in _RANKS or (name and bias is None):
        return None
    return QuantizableLayer(node, weight, bias, 1, 1)


def _gemm(graph: Graph, node: Node, weight: np.ndarray) -> QuantizableLayer | None:
    name, axis = operand(node, 2), 0 if node["transB"] else 1
    bias = constant(graph, name)
    plain = node["alpha"] == 1 and not node["transA"] and (node["beta"] == 1 or not name)
    if not plain or weight.ndim != 2 or (name and bias is None) or (bias is not None and not by_column(bias)):
        return None
    each = None if bias is None else np.ascontiguousarray(np.broadcast_to(bias.ravel(), weight.shape[axis]))
    return QuantizableLayer(node, weight, each, axis, 1)


def _matmul(graph: Graph, node: Node, weight: np.ndarray) -> QuantizableLayer | None:
    return QuantizableLayer(node, weight, None, 1, -1) if weight.ndim == 2 else None


_LAYERS: dict[str, Callable[[Graph, Node, np.ndarray], QuantizableLayer | None]] = {
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "MatMul": _matmul,
}


def layers_of(graph: Graph) -> tuple[QuantizableLayer, ...]:
    """List all quantisable layers of a network, in order."""
    return tuple(found for node in graph.nodes if (found := layer_of(graph, node)) is not None)
