"""Elementwise operators after a convolution or Linear become its epilogue.

Patterns: Conv or Linear that only one node reads: an Add of a value of the same shape that is no constant; and behind
that, or at once, an operator whose expression is an activation's (`problem.activation`). Where both sides of an Add
could take it, the later one does. A cycle cannot arise, as nothing else depends on the node. What only moves elements
may stand between the node and the activation, as it moves its results just as well. Equal up to the rounding of what
is no longer stored in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.elementwise import expression_of
from cpuconv.graph.passes.rewriting import Rewrite, Rewriter, is_float, operand, sole_reader
from cpuconv.kernels.elementwise.expression import Apply, Constant, Expression, Operand, apply
from cpuconv.problem import activation
from cpuconv.problem.activation import Activation

HOSTS = ("Conv", "Linear", "QuantizedConv", "QuantizedLinear")
MOVERS = ("DepthToSpace", "Reshape", "Slice", "SpaceToDepth", "Transpose")


def _forms() -> Iterator[tuple[str, tuple[Operand | float, ...], Expression]]:
    """Each activation by name, its scalars, which are numbers or operands behind the first, and its expression."""
    x, *numbers = map(Operand, range(3))
    for name in activation.names():
        scalars = numbers[: len(activation.scalars_of(name) or ())]
        yield name, tuple(scalars), apply(name, x, *scalars)
    yield "clip", (numbers[0], math.inf), apply("max", x, numbers[0])
    yield "clip", (-math.inf, numbers[0]), apply("min", x, numbers[0])


FORMS = tuple(_forms())


def _activation(graph: Graph, node: Node) -> Activation | None:
    """The activation that an elementwise operator of its first input is."""
    tree = None if node.meaning is not None else expression_of(node, graph.operands(node))
    if tree is None or graph.value(node.inputs[0]) != graph.value(node.outputs[0]):
        return None
    for name, scalars, form in FORMS:
        numbers: dict[int, float] = {}
        if _is(tree, form, numbers):
            values = [numbers[each.position] if isinstance(each, Operand) else each for each in scalars]
            if name == "clip" and values[0] > values[1]:
                return None
            return (name, *(value + 0.0 for value in values))  # -0 as 0, as keys have it
    return None


def _is(tree: Expression, form: Expression, numbers: dict[int, float]) -> bool:
    """Whether a tree is a form whose operands behind the first stand for `numbers`, which are found here."""
    if isinstance(tree, Constant) and isinstance(form, Constant):
        return tree.value == form.value
    if isinstance(form, Operand) and form.position > 0:  # a tensor is no number, not even one of a single element
        return isinstance(tree, Constant) and numbers.setdefault(form.position, tree.value) == tree.value
    if isinstance(tree, Apply) and isinstance(form, Apply) and tree.function == form.function:
        return all(_is(*pair, numbers) for pair in zip(tree.arguments, form.arguments, strict=True))
    return tree == form


def _open(graph: Graph, node: Node) -> bool:
    """Whether something may come before the node's result is stored."""
    own = node.op in HOSTS and node["activation"] is None and is_float(graph, node.outputs[0])
    return own and sole_reader(graph, node.outputs[0]) is not None


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
    if rival is not None and could and graph.place(rival) > graph.place(node):
        return None
    inputs = (*node.inputs[:2], operand(node, 2), other)
    return Rewrite([node, reader], [replace(node, inputs=inputs, outputs=reader.outputs)])


def _with_activation(graph: Graph, node: Node, reader: Node) -> Rewrite | None:
    """The node with the activation behind it, and what moves elements behind that."""
    movers = []
    while reader.op in MOVERS and (following := sole_reader(graph, reader.outputs[0])) is not None:
        movers.append(reader)
        reader = following
    found = _activation(graph, reader)
    if found is None:
        return None
    made = [replace(node, attributes={**node.attributes, "activation": found}), *movers]
    made[-1] = replace(made[-1], outputs=reader.outputs)
    return Rewrite([node, *movers, reader], made)


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    reader = sole_reader(graph, node.outputs[0]) if _open(graph, node) else None
    if reader is None:
        return None
    return _with_residual(graph, node, reader) or _with_activation(graph, node, reader)


run = Rewriter(__doc__, dict.fromkeys(HOSTS, _rule))
