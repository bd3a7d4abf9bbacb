"""What follows a convolution or Linear element by element is computed before its result is stored.

Patterns: Conv or Linear that only one node reads: an Add of a value of the same shape that is no constant; and behind
that, or at once, an activation that epilogues know (`cpuconv.problem.activation`). Where both sides of an Add could take
it, the later one does. Equal up to the rounding of what is no longer stored in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.pattern import near
from cpuconv.graph.passes.rewriting import Maker, Rewrite, operand, rewritten, scalar, sole_reader
from cpuconv.problem.activation import Activation

HOSTS = ("Conv", "Linear")


def _clip(graph: Graph, node: Node) -> Activation | None:
    ends = [operand(node, at) for at in (1, 2)]
    stated = [scalar(graph, name) if name else end for name, end in zip(ends, (-math.inf, math.inf), strict=True)]
    if None in stated or not stated[0] <= stated[1]:
        return None
    lo, hi = stated
    return {(0.0, math.inf): ("relu",), (0.0, 6.0): ("relu6",)}.get((lo, hi), ("clip", lo + 0.0, hi + 0.0))


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


def _open(graph: Graph, node: Node | None) -> bool:
    """Whether something may follow before the node's result is stored."""
    return (
        node is not None
        and node.op in HOSTS
        and node["activation"] is None
        and sole_reader(graph, node.outputs[0]) is not None
    )


def _residual(graph: Graph, node: Node, reader: Node) -> str | None:
    """The value that an Add behind a node adds to its result, if the node is to take it."""
    if reader.op != "Add" or operand(node, 3):
        return None
    (own,) = node.outputs
    other = reader.inputs[1 if reader.inputs[0] == own else 0]
    if other == own or other in graph.constants or graph.value(other) != graph.value(own):
        return None
    rival = graph.producer(other)
    later = _open(graph, rival) and not operand(rival, 3) and graph.nodes.index(rival) > graph.nodes.index(node)
    return None if later else other


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    if not _open(graph, node):
        return None
    reader = sole_reader(graph, node.outputs[0])
    residual = _residual(graph, node, reader)
    applied = ACTIVATIONS.get(reader.op)
    activation = applied(graph, reader) if applied and reader.meaning is None else None
    if residual is None and activation is None:
        return None
    inputs = [*node.inputs, ""][:3]
    inputs = [*inputs, "" if operand(node, 3) == "" and residual is None else residual or operand(node, 3)]
    maker = Maker(graph, node, reader)
    maker.node(node.op, *inputs, **{**node.attributes, "activation": activation})
    return maker.done()


def run(graph: Graph) -> Graph:
    """Take them all in."""
    return rewritten(graph, _rule)
