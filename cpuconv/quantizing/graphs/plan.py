"""What of a network becomes bytes: which tensors, which share a scale, and the weights of which operators.

Products (convolutions and products with constant matrices) are what bytes are faster for: their inputs become bytes,
and their outputs where somebody reads bytes. Operators between them follow, as `onnxruntime.quantization` has them:
what moves numbers keeps the scale of its input, what is read by one Concat alone takes its scale, and an activation
that clamps is a part of the range of what stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.passes.quantised import MOVES
from cpuconv.graph.passes.rewriting import constant, operand, sole_reader
from cpuconv.quantizing.graphs.plain import by_column

_FLOAT32 = np.dtype(np.float32)
_RANKS = (3, 4, 5)  # of weights


class Product(NamedTuple):
    """A node that multiplies with constant weights.

    `axis` is that of the output channels of its weights, or of those of each group; `channels` that of its output.
    """

    node: Node
    weight: np.ndarray
    bias: np.ndarray | None
    axis: int
    channels: int

    @property
    def outputs(self) -> int:
        """How many channels it gives."""
        own: int = self.weight.shape[self.axis]
        return own * self.node["group"] if self.node.op == "ConvTranspose" else own

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.node.origin or self.node.outputs[0]


def product_of(graph: Graph, node: Node) -> Product | None:
    """The node as a product; None if it is none, or its weights are no constants of float32."""
    found = _PRODUCTS.get(node.op) if node.meaning is None else None
    weight = constant(graph, operand(node, 1))
    if found is None or weight is None or weight.dtype != _FLOAT32 or not np.isfinite(weight).all():
        return None
    return found(graph, node, weight)


def _conv(graph: Graph, node: Node, weight: np.ndarray) -> Product | None:
    name = operand(node, 2)
    bias = constant(graph, name)
    if weight.ndim not in _RANKS or (name and bias is None) or node["activation"] or operand(node, 3):
        return None
    return Product(node, weight, bias, 0, 1)


def _transposed(graph: Graph, node: Node, weight: np.ndarray) -> Product | None:
    """(C, K / groups, …) weights: one scale serves the channels of one place in all groups."""
    name = operand(node, 2)
    bias = constant(graph, name)
    if weight.ndim not in _RANKS or (name and bias is None):
        return None
    return Product(node, weight, bias, 1, 1)


def _gemm(graph: Graph, node: Node, weight: np.ndarray) -> Product | None:
    name, axis = operand(node, 2), 0 if node["transB"] else 1
    bias = constant(graph, name)
    plain = node["alpha"] == 1 and not node["transA"] and (node["beta"] == 1 or not name)
    if not plain or weight.ndim != 2 or (name and bias is None) or (bias is not None and not by_column(bias)):
        return None
    each = None if bias is None else np.ascontiguousarray(np.broadcast_to(bias.ravel(), weight.shape[axis]))
    return Product(node, weight, each, axis, 1)


def _matmul(graph: Graph, node: Node, weight: np.ndarray) -> Product | None:
    return Product(node, weight, None, 1, -1) if weight.ndim == 2 else None


_PRODUCTS: dict[str, Callable[[Graph, Node, np.ndarray], Product | None]] = {
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
_CLAMPS = frozenset(("Relu", "Clip"))
_FUNCTIONS = _CLAMPS | {"Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Sigmoid", "Tanh"}
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_FOLLOWERS = _FUNCTIONS | {"AveragePool", "GlobalAveragePool", "ReduceMean", "Softmax"}
_JOINS = frozenset(("Add", "Mul"))
_KEEPING = MOVES | {"Resize", "Split"}  # nearest or linear: no output is outside of the input's range


@dataclass(frozen=True)
class Plan:
    """What becomes bytes.

    Attributes
    ----------
    products : tuple of Product
        Whose weights become bytes.
    roots : mapping of str to str
        Tensors that become bytes, each with the one whose scale it has.
    """

    products: tuple[Product, ...]
    roots: Mapping[str, str]


def products_of(graph: Graph) -> tuple[Product, ...]:
    """All products of a network, in order."""
    return tuple(found for node in graph.nodes if (found := product_of(graph, node)) is not None)


def plan_of(graph: Graph, known: Mapping[str, Value], products: Collection[Product]) -> Plan:
    """What becomes bytes so that these products multiply bytes.

    Parameters
    ----------
    graph : Graph
        What `prepared` gives.
    known : mapping of str to Value
        Dtypes of its values.
    products : collection of Product
        Of `products_of`.
    """
    chosen = {id(product.node): product for product in products}
    tensors = _tensors(graph, known, chosen)
    return Plan(tuple(products), _roots(graph, _needed(graph, tensors, chosen)))


def _data(node: Node) -> tuple[str, ...]:
    """The inputs of a follower, a join or a move that are data."""
    return node.inputs if node.op in _JOINS or node.op == "Concat" else node.inputs[:1]


def clamp_behind(graph: Graph, name: str) -> Node | None:
    """The node that alone reads a value, and clamps it."""
    node = sole_reader(graph, name)
    return node if node is not None and node.op in _CLAMPS and node.meaning is None and node.inputs[0] == name else None


def _result(graph: Graph, node: Node) -> str:
    """What becomes bytes of a node's output: what a clamp behind makes of it."""
    clamp = clamp_behind(graph, node.outputs[0])
    return node.outputs[0] if clamp is None else clamp.outputs[0]


def _tensors(graph: Graph, known: Mapping[str, Value], chosen: Mapping[int, Product]) -> dict[str, None]:
    """What may become bytes: ends of products, and what follows from them by the operators between."""

    def is_data(name: str) -> bool:
        value = known.get(name)
        return value is not None and value.dtype == _FLOAT32 and name not in graph.constants

    found = dict.fromkeys(product.node.inputs[0] for product in chosen.values())
    found |= dict.fromkeys(_result(graph, product.node) for product in chosen.values())
    for node in graph.nodes:
        if node.meaning is not None or id(node) in chosen or not node.outputs or not is_data(node.outputs[0]):
            continue
        read = [name for name in _data(node) if name not in graph.constants]
        follows = node.op in _FOLLOWERS or (node.op in _KEEPING and _keeps(node)) or _is_join(node, read)
        if follows and any(name in found for name in read) and all(map(is_data, read)):
            found |= dict.fromkeys(read)
            found |= dict.fromkeys([_result(graph, node)] if node.op in _JOINS else filter(None, node.outputs))
    return {name: None for name in found if is_data(name)}


def _is_join(node: Node, read: Sequence[str]) -> bool:
    return node.op in _JOINS and len(read) == 2


def _keeps(node: Node) -> bool:
    """Whether what a node gives lies in its input's range."""
    if node.op == "Resize":
        return node["mode"] in ("nearest", "linear") and node["coordinate_transformation_mode"] != "tf_crop_and_resize"
    return node.op != "MaxPool" or not any(node.outputs[1:])


def _needed(graph: Graph, tensors: Mapping[str, None], chosen: Mapping[int, Product]) -> dict[str, None]:
    """Those that something reads as bytes, or that a convolution makes: engines join what stores them."""
    stored = {_result(graph, product.node) for product in chosen.values() if product.node.op in _CONVOLUTIONS}
    needed: set[str] = set()
    for node in reversed(graph.nodes):
        used = id(node) in chosen or any(name in needed for name in node.outputs)
        for name in node.outputs:
            if name in tensors and name in stored and not _is_given(graph, name):
                needed.add(name)
                used = True
        if not used or node.meaning is not None:
            continue
        if id(node) in chosen:
            needed.add(node.inputs[0])
        elif node.op in _FOLLOWERS | _JOINS | _KEEPING:
            before = node.inputs[0] if node.op in _CLAMPS else ""
            producer = graph.producer(before)
            folded = producer is not None and _result(graph, producer) == node.outputs[0]
            computed = producer is not None and (id(producer) in chosen or producer.op in _JOINS)
            if folded and computed and producer is not None:
                needed.update(name for name in _data(producer) if producer.op in _JOINS)
            else:
                needed.update(_data(node))
    return {name: None for name in tensors if name in needed}


def _is_given(graph: Graph, name: str) -> bool:
    """Whether the caller gets a value, perhaps in another type."""
    readers = graph.users(name)
    cast = bool(readers) and all(node.op == "Cast" and node.outputs[0] in graph.outputs for node in readers)
    return name in graph.outputs or cast


def _roots(graph: Graph, tensors: Mapping[str, None]) -> dict[str, str]:
    """Whose scale each tensor has."""
    roots = {name: name for name in tensors}

    def root(name: str) -> str:
        while roots[name] != name:
            name = roots[name]
        return name

    for node in graph.nodes:
        if node.meaning is not None or node.op not in _KEEPING or not _keeps(node):
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
