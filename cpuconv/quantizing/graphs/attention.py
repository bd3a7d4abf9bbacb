"""Attention as a quantisable layer: softmax(q k · scale + masks) v, two products of activations.

Operands and attention weights (the result of Softmax) are quantised. Scores and masks stay float32, as a mask of
windows or hidden keys spans a range that leaves too few quantisation steps for the scores. Constant factors of operands
and scores become part of the scale of an operand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.passes.attention import without_factor
from cpuconv.graph.passes.pattern import Found, Free, Pattern, Symbol, is_alone, operator
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.quantizing.graphs.quantizable import QuantizableLayer, layer_of

MatMul, Div, Reshape, Softmax = map(operator, ("MatMul", "Div", "Reshape", "Softmax"))
q, k, v, bias, mask, split, merged = map(Symbol, ("q", "k", "v", "bias", "mask", "split", "merged"))
factor, divisor = Free("factor"), Free("divisor")

_MAX_WEIGHTS = 1 << 27  # maximum attention weights per sample; calibration holds them all in memory


def _pattern() -> Pattern:
    products = MatMul(q, k)
    scores = products * factor | Div(products, divisor) | products
    biased = scores + bias | scores
    apart = Reshape(Reshape(biased, split) + mask, merged)
    return MatMul(Softmax(apart | biased + mask | biased), v)


_ATTENTION = _pattern()


class QuantizableAttention(NamedTuple):
    """An attention of activations.

    Attributes
    ----------
    nodes : tuple of Node
        All nodes of the graph that compute it, in order.
    written : tuple of Node
        The same without a constant factor of the scores: product of queries and keys, masks, Softmax, product with the
        values.
    inputs : tuple of str
        Queries, keys and values, without constant factors.
    factors : tuple of float
        Positive factors of the inputs.
    """

    nodes: tuple[Node, ...]
    written: tuple[Node, ...]
    inputs: tuple[str, ...]
    factors: tuple[float, ...]

    @property
    def op(self) -> str:
        """Operator of the layer."""
        return "Attention"

    @property
    def node(self) -> Node:
        """Node that computes the result."""
        return self.nodes[-1]

    @property
    def inner(self) -> tuple[str, ...]:
        """Tensors within the layer that are int8 if the layer is: the attention weights."""
        return self.nodes[-2].outputs

    @property
    def name(self) -> str:
        """Name of the layer in the model: that of its last node."""
        return self.node.origin or self.node.outputs[0]


Quantizable = QuantizableLayer | QuantizableAttention


def quantizable(graph: Graph, known: Mapping[str, Value]) -> tuple[Quantizable, ...]:
    """List layers and attentions that may be int8, in order.

    Parameters
    ----------
    graph : Graph
    known : mapping of str to Value
        Shapes and dtypes of its tensors, by name.
    """
    sized = replace(graph, values={**graph.values, **known})
    found = (layer_of(graph, node) or _attention_of(sized, node) for node in graph.nodes)
    return tuple(each for each in found if each is not None)


def _attention_of(graph: Graph, node: Node) -> QuantizableAttention | None:
    """View the product with values as the end of an attention; None if it is none."""
    if node.op != "MatMul" or node.semantics is not None:
        return None
    for found in _ATTENTION.matches(graph, node.outputs[0], Found()):
        if is_alone(graph, node, found):
            return _checked(graph, found)
    return None


def _checked(graph: Graph, found: Found) -> QuantizableAttention | None:
    """View a match as an attention; None if operands are constant, or types, axis or factors do not fit."""
    nodes = found.nodes[::-1]
    product, *between, softmax, last = nodes
    scores = graph.value(softmax.inputs[0])
    shapes = [graph.value(found.names[name]).shape for name in "qkv"]
    if scores.dtype != FLOAT32 or not all(shape is not None and len(shape) > 1 for shape in (*shapes, scores.shape)):
        return None
    assert scores.shape is not None
    sizes = [size for size in scores.shape if isinstance(size, int)]
    if len(sizes) < len(scores.shape) or math.prod(sizes) > _MAX_WEIGHTS or softmax["axis"] not in (-1, len(sizes) - 1):
        return None
    scale = found.numbers.get("factor", 1.0) / (found.numbers.get("divisor", 1.0) or math.nan)
    if found.numbers:  # the product gives the scaled scores
        scaled, *between = between
        if graph.value(scaled.outputs[0]).shape != graph.value(product.outputs[0]).shape:
            return None
        product = replace(product, outputs=scaled.outputs)
    operands = [_without_positive_factor(graph, found.names[name]) for name in "qk"]
    names, factors = zip(*operands, (found.names["v"], 1.0), strict=True)
    factors = (factors[0] * scale, *factors[1:])
    if any(name in graph.constants or graph.value(name).dtype != FLOAT32 for name in names):
        return None
    if not all(0 < each < math.inf for each in factors):
        return None
    return QuantizableAttention(nodes, (product, *between, softmax, last), names, factors)


def _without_positive_factor(graph: Graph, name: str) -> tuple[str, float]:
    before, scale = without_factor(graph, name)
    return (before, scale) if scale > 0 else (name, 1.0)
