"""What follows a convolution or Linear element by element is computed before its result is stored.

Patterns: Conv or Linear that only one node reads: an Add of a value of the same shape that is no constant; and behind
that, or at once, an activation that epilogues know (`cpuconv.problem.activation`). Where both sides of an Add could
take it, the later one does. A cycle cannot arise, as nothing else depends on the node. What only moves elements may
stand between the node and the activation, as it moves its results just as well. Equal up to the rounding of what is no
longer stored in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.pattern import near
from cpuconv.graph.passes.rewriting import Rewrite, operand, rewritten, scalar, sole_reader
from cpuconv.problem.activation import Activation

HOSTS = ("Conv", "Linear")
MOVERS = ("DepthToSpace", "Reshape", "Slice", "SpaceToDepth", "Transpose")


def _clip(graph: Graph, node: Node) -> Activation | None:
    low, high = operand(node, 1), operand(node, 2)
    lo = scalar(graph, low) if low else -math.inf
    hi = scalar(graph, high) if high else math.inf
    if lo is None or hi is None or not lo <= hi:
        return None
    if lo == 0 and hi in (6, math.inf):
        return ("relu6" if hi == 6 else "relu",)
    return ("clip", lo + 0.0, hi + 0.0)


def _hard_sigmoid(graph: Graph, node: Node) -> Activation | None:
    return ("hardsigmoid",) if near(node["alpha"], 1 / 6) and near(node["beta"], 0.5) else None


ACTIVATIONS: dict[str, Callable[[Graph, Node], Activation | None]] = {
    "Relu": lambda graph, node: ("relu",),
    "Clip": _clip,
    "LeakyRelu": lambda graph, node: ("leaky_relu", float(node["alpha"])),
    "Sigmoid": lambda graph, node: ("sigmoid",),
    "Tanh": lambda graph, node: ("tanh",),
    "Swish": lambda graph, node: ("silu",) if node["alpha"] == 1 else None,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda graph, node: ("hardswish",),
    "Gelu": lambda graph, node: ("gelu_tanh",) if node["approximate"] == "tanh" else ("gelu",),
}


def _open(graph: Graph, node: Node) -> bool:
    """Whether something may come before the node's result is stored."""
    return node.op in HOSTS and node["activation"] is None and sole_reader(graph, node.outputs[0]) is not None


def _with_residual(graph: Graph, node: Node, reader: Node) -> Rewrite | None:
    """The node with what an Add behind it adds."""
    (own,) = node.outputs
    if reader.op != "Add" or operand(node, 3):
        return None
    other = reader.inputs[1 if reader.inputs[0] == own else 0]
    if other == own or other in graph.constants or graph.value(other) != graph.value(own):
        return None
    rival = graph.producer(other)
    could = rival is not None and _open(graph, rival) and not operand(rival, 3)
    if could and graph.nodes.index(rival) > graph.nodes.index(node):
        return None
    inputs = (*node.inputs[:2], operand(node, 2), other)
    return Rewrite([node, reader], [replace(node, inputs=inputs, outputs=reader.outputs)])


def _with_activation(graph: Graph, node: Node, reader: Node) -> Rewrite | None:
    """The node with the activation behind it, and what moves elements behind that."""
    movers = []
    while reader.op in MOVERS and (following := sole_reader(graph, reader.outputs[0])) is not None:
        movers.append(reader)
        reader = following
    known = ACTIVATIONS.get(reader.op)
    activation = known(graph, reader) if known and reader.meaning is None else None
    if activation is None:
        return None
    made = [replace(node, attributes={**node.attributes, "activation": activation}), *movers]
    made[-1] = replace(made[-1], outputs=reader.outputs)
    return Rewrite([node, *movers, reader], made)


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    reader = sole_reader(graph, node.outputs[0]) if _open(graph, node) else None
    if reader is None:
        return None
    return _with_residual(graph, node, reader) or _with_activation(graph, node, reader)


def run(graph: Graph) -> Graph:
    """Take them all in."""
    return rewritten(graph, _rule)
