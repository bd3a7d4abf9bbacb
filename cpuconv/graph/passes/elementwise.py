"""Chains and trees of elementwise operators become one `Elementwise` operator.

Pattern: an elementwise node reads a value that another one computes, that nothing else reads and no caller gets. Why
the result is equal: both compute each element from the elements at the same place of their broadcast operands, so the
second function of the first one's result is a function of these operands, and the expression is that function. It only
skips rounding the value between them to memory. Where that is bytes, computed from several tensors of bytes and
constants, rounding and clamping it are part of the expression. A value of fewer elements than the result would be
computed anew wherever it is broadcast to: that is done where it costs next to nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import OF_DTYPE, S8, U8
from cpuconv.graph.ir import Graph, Node, joined
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.base import broadcast_shapes
from cpuconv.graph.ops.elementwise import expression_of
from cpuconv.kernels.binding.place import FLOAT32
from cpuconv.kernels.elementwise.driver import MOST_OPERANDS
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.problem.quantization import bounds

_BYTES = (U8.dtype, S8.dtype)
_CHEAP = 2  # cycles of a vector that may be spent anew wherever a value is broadcast to
_MOST_NODES = 32  # of an expression
_MOST_TEXT = 1 << 15  # characters of the texts of its subtrees, which repeat what they share: x * x of x * x of …


@dataclass(frozen=True)
class _Piece:
    """Nodes as one expression of the values `names`, by position; the last node's output is its value."""

    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    tree: Expression
    dtype: np.dtype

    @property
    def value(self) -> Expression:
        """What others read."""
        if self.dtype not in _BYTES:
            return self.tree
        low, high = bounds(OF_DTYPE[self.dtype])
        return apply("min", apply("max", apply("round", self.tree), low), high)

    @property
    def output(self) -> str:
        return self.nodes[-1].outputs[0]

    def absorbing(self, producer: _Piece) -> _Piece:
        """The piece with the expression of one of its operands in the place of that operand."""
        own = [name for name in self.names if name != producer.output]
        names = tuple(dict.fromkeys([*own, *producer.names])) if {*own} - {*producer.names} else producer.names
        operands: dict[str, Expression] = {name: Operand(at) for at, name in enumerate(names)}
        inner = producer.value
        if names != producer.names:  # else its operands stay what they are
            inner = inner.substituted([operands[name] for name in producer.names])
        operands[producer.output] = inner
        tree = self.tree.substituted([operands[name] for name in self.names])
        return _Piece((*producer.nodes, *self.nodes), names, tree, self.dtype)

    def exceeds_with(self, producer: _Piece) -> bool:
        """Whether `absorbing` would exceed a bound, as far as that is known before its expression is made."""
        names, others = {*self.names} - {producer.output}, {*producer.names}
        if len(names | others) > MOST_OPERANDS:
            return True
        functions = sum(bool(node.arguments) for node in self.tree.nodes)
        if names.isdisjoint(others) and functions + len(producer.tree.nodes) > _MOST_NODES:  # nothing is shared
            return True
        lengths: dict[Expression, int] = {}
        for node in self.tree.nodes:
            lengths[node] = len(node.text) + sum(lengths[each] - len(each.text) for each in node.arguments)
            if isinstance(node, Operand) and self.names[node.position] == producer.output:
                lengths[node] = len(producer.value.text)
        return sum(lengths.values()) > _MOST_TEXT

    def merged(self, graph: Graph) -> Node:
        """One node that computes it."""
        last, dtype = self.nodes[-1], self.dtype
        floats = {dtype, *(graph.value(name).dtype for name in self.names)} == {FLOAT32}
        to = None if floats else dtype
        made = TABLE["Elementwise"].node(self.names, last.outputs, last.origin, expression=self.tree, to=to)
        return replace(made, parts=joined(self.nodes))


def run(graph: Graph) -> Graph:
    """The graph with trees of elementwise nodes merged, as far as their operands are few.

    Parameters
    ----------
    graph : Graph
        Specialised: every shape is known.
    """
    pieces: dict[str, _Piece] = {}  # by output, those not absorbed by others
    for node in graph.nodes:
        piece = _piece(graph, node)
        while piece is not None:
            pieces[piece.output] = piece
            piece = _absorbing(graph, piece, pieces)
    trees = [piece for piece in pieces.values() if len(piece.nodes) > 1]
    old = [node for piece in trees for node in piece.nodes]
    return graph.replaced(old, [piece.merged(graph) for piece in trees]) if trees else graph


def _piece(graph: Graph, node: Node) -> _Piece | None:
    """A single node, if it is elementwise."""
    inputs = graph.operands(node)
    tree = None if node.meaning is not None else expression_of(node, inputs)
    if tree is None:
        return None
    read = {position: node.inputs[position] for position in tree.operands}
    names = tuple(dict.fromkeys(read.values()))
    shapes = [graph.value(name).shape for name in names]
    if None in shapes or broadcast_shapes(*shapes) != graph.value(node.outputs[0]).shape:  # type: ignore[arg-type]
        return None  # an operand that became a number has axes of its own
    own = tree.substituted({at: Operand(names.index(name)) for at, name in read.items()})
    return _Piece((node,), names, own, graph.value(node.outputs[0]).dtype or FLOAT32)


def _mergeable(graph: Graph, producer: _Piece) -> bool:
    """Whether a value may be computed where it is read: a float; bytes of finite numbers that no table gives."""
    if producer.dtype == FLOAT32:
        return True
    read = [name for name in producer.names if name not in graph.constants]
    finite = all(graph.value(name).dtype in _BYTES for name in read)
    return producer.dtype in _BYTES and finite and len(producer.names) > 1


def _absorbing(graph: Graph, piece: _Piece, pieces: dict[str, _Piece]) -> _Piece | None:
    """The piece with one of the others in it, which it alone reads and which is none of `pieces` any more."""
    for name in piece.names:
        producer = pieces.get(name)
        if producer is None or not _mergeable(graph, producer):
            continue
        users = graph.users(name)
        if graph.gives(name) or len(users) > len(piece.nodes) or not {*users} <= {*piece.nodes}:
            continue
        same = graph.value(name).shape == graph.value(piece.output).shape
        if not same and producer.tree.cost > _CHEAP:
            continue
        if piece.exceeds_with(producer):
            continue
        made = piece.absorbing(producer)
        if len(made.tree.nodes) <= _MOST_NODES:
            del pieces[name]
            return made
    return None
