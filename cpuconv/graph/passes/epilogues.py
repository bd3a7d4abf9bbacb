"""Fuse elementwise operators after a convolution or Linear into its epilogue.

Patterns: Conv or Linear with a single reader. The reader may be an Add of a non-constant value of the same shape. The
reader, or the node after the Add, may be an operator whose expression is an activation's (`problem.activation`). If
both operands of an Add qualify, the later node fuses it. No cycle can arise, as no other node depends on the result.
Data movement may be between the node and the activation; it is applied after the activation instead. So may a Transpose
between a Linear and an Add, whose other operand is transposed to rows. Equal up to the rounding of values that are no
longer stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import names_of, traits_of
from cpuconv.graph.ops.elementwise import expression_of
from cpuconv.graph.ops.shaping import channels_moved
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, is_float, operand, sole_reader
from cpuconv.kernels.elementwise.expression import Apply, Constant, Expression, Operand, apply
from cpuconv.problem import activation
from cpuconv.problem.activation import Activation


def _forms() -> Iterator[tuple[str, tuple[Operand | float, ...], Expression]]:
    """Name, scalars and expression of each activation; scalars are numbers, or operands after the first."""
    x, *numbers = map(Operand, range(3))
    for name in filter(activation.is_fused, activation.names()):
        scalars = numbers[: len(activation.scalars_of(name) or ())]
        yield name, tuple(scalars), apply(name, x, *scalars)
    yield "clip", (numbers[0], math.inf), apply("max", x, numbers[0])
    yield "clip", (-math.inf, numbers[0]), apply("min", x, numbers[0])


FORMS = tuple(_forms())


def _activation(graph: Graph, node: Node) -> Activation | None:
    """Activation that an elementwise operator of its first input computes; None if it is none."""
    tree = None if node.semantics is not None else expression_of(node, graph.operands(node))
    if tree is None or graph.value(node.inputs[0]) != graph.value(node.outputs[0]):
        return None
    for name, scalars, form in FORMS:
        numbers: dict[int, float] = {}
        if _is(tree, form, numbers):
            values = [numbers[each.position] if isinstance(each, Operand) else each for each in scalars]
            if name == "clip" and values[0] > values[1]:
                return None
            return (name, *(value + 0.0 for value in values))  # -0 as 0, as in keys
    return None


def _is(tree: Expression, form: Expression, numbers: dict[int, float]) -> bool:
    """Whether a tree matches a form; `numbers` collects the constants for the form's operands after the first."""
    if isinstance(tree, Constant) and isinstance(form, Constant):
        return tree.value == form.value
    if isinstance(form, Operand) and form.position > 0:  # a tensor is not a number, not even with one element
        return isinstance(tree, Constant) and numbers.setdefault(form.position, tree.value) == tree.value
    if isinstance(tree, Apply) and isinstance(form, Apply) and tree.function == form.function:
        return all(_is(*pair, numbers) for pair in zip(tree.arguments, form.arguments, strict=True))
    return tree == form


def _open(graph: Graph, node: Node) -> bool:
    """Whether an operator may be fused before the node's result is stored."""
    own = traits_of(node).has_epilogue and node["activation"] is None and is_float(graph, node.outputs[0])
    return own and sole_reader(graph, node.outputs[0]) is not None


def _with_residual(graph: Graph, node: Node, reader: Node) -> Rewrite | None:
    """Fuse an Add after the node as residual, also behind the Transpose of a Linear from rows of channels to planes."""
    (own,), turn, after = node.outputs, reader, sole_reader(graph, reader.outputs[0])
    rank = len(graph.value(own).shape or ())
    turned = node.op == "Linear" and reader.op == "Transpose" and "second" in channels_moved(reader, rank)
    if turned and after is not None:
        (own,), reader = reader.outputs, after
    if reader.op != "Add" or operand(node, 3):
        return None
    other = reader.inputs[1 if reader.inputs[0] == own else 0]
    if other == own or other in graph.constants or graph.value(other) != graph.value(own):
        return None
    rival = graph.producer(other)
    could = rival is not None and _open(graph, rival) and not operand(rival, 3)
    if rival is not None and could and graph.place(rival) > graph.place(node):
        return None
    if reader is turn:
        inputs = (*node.inputs[:2], operand(node, 2), other)
        return Rewrite([node, reader], [replace(node, inputs=inputs, outputs=reader.outputs)])
    maker = Maker(graph, node, turn, reader)
    rows = maker.node("Transpose", other, part="residual", perm=[*map(int, np.argsort(turn["perm"]))])
    y = maker.node(node.op, *node.inputs[:2], operand(node, 2), rows, part="rows", **node.attributes)
    maker.node("Transpose", y, perm=turn["perm"])
    return maker.done()


def _with_activation(graph: Graph, node: Node, reader: Node) -> Rewrite | None:
    """Fuse the activation after the node; data movement in between is applied after it."""
    movers = []
    while traits_of(reader).movement and (following := sole_reader(graph, reader.outputs[0])) is not None:
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


# A QuantizeLinear may be behind the operators that an integer layer takes.
RULES = dict.fromkeys(names_of(lambda op: op.has_epilogue), _rule)
run = Pass("epilogues", __doc__, (RULES,), needs=("channel_mixing", "common", "transposed"), undoes=("quantised",))
