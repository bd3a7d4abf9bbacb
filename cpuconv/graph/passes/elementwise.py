"""Merge chains and trees of elementwise operators into one `Elementwise` operator.

Pattern: an elementwise node reads a value of another one that no other node reads and that is not an output. Both
compute each element from the elements at the same index of their broadcast operands, so that their composition is a
function of these operands too. Results are equal; only a rounding to memory is skipped. If the value in between is int8
or uint8, computed from several int8 or uint8 tensors and constants, its rounding and clamping are part of the
expression. A value with fewer elements than the result would be recomputed for each broadcast element, which is only
done if it is cheap. Readers of dequantised integers read the integers: less memory traffic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import OF_DTYPE
from cpuconv.graph.ir import Graph, Node, merged_parts
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.base import broadcast_shapes
from cpuconv.graph.ops.elementwise import BOOL, expression_of
from cpuconv.graph.ops.elementwise_forms import COMPARISONS, FORMS
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite
from cpuconv.graph.passes.scaled import INT8_DTYPES, QUANTISATION
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.kernels.elementwise.driver import MAX_OPERANDS
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.problem.quantization import bounds

_CHEAP = 2  # cycles per vector that may be recomputed per broadcast element
_MAX_NODES = 32  # per expression
_MAX_TEXT = 1 << 15  # characters of all subtrees' texts, which repeat shared subtrees: x * x of x * x of x * x …


@dataclass(frozen=True)
class _Piece:
    """Nodes as one expression of the values `names`, by position; its value is the output of the last node."""

    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    tree: Expression
    dtype: np.dtype

    @property
    def value(self) -> Expression:
        """Expression of the output, including rounding and clamping of int8 and uint8."""
        if self.dtype not in INT8_DTYPES:
            return self.tree
        low, high = bounds(OF_DTYPE[self.dtype])
        return apply("min", apply("max", apply("round", self.tree), low), high)

    @property
    def output(self) -> str:
        return self.nodes[-1].outputs[0]

    def absorbing(self, producer: _Piece) -> _Piece:
        """Substitute the expression of `producer` for the operand that it computes."""
        own = [name for name in self.names if name != producer.output]
        names = tuple(dict.fromkeys([*own, *producer.names])) if {*own} - {*producer.names} else producer.names
        operands: dict[str, Expression] = {name: Operand(at) for at, name in enumerate(names)}
        inner = producer.value
        if names != producer.names:  # otherwise its operands keep their positions
            inner = inner.substituted([operands[name] for name in producer.names])
        operands[producer.output] = inner
        tree = self.tree.substituted([operands[name] for name in self.names])
        return _Piece((*producer.nodes, *self.nodes), names, tree, self.dtype)

    def exceeds_with(self, producer: _Piece) -> bool:
        """Whether `absorbing` would certainly exceed a limit, estimated without making the expression."""
        names, others = {*self.names} - {producer.output}, {*producer.names}
        if len(names | others) > MAX_OPERANDS:
            return True
        functions = sum(bool(node.arguments) for node in self.tree.nodes)
        if names.isdisjoint(others) and functions + len(producer.tree.nodes) > _MAX_NODES:  # no shared operands
            return True
        lengths: dict[Expression, int] = {}
        for node in self.tree.nodes:
            lengths[node] = len(node.text) + sum(lengths[each] - len(each.text) for each in node.arguments)
            if isinstance(node, Operand) and self.names[node.position] == producer.output:
                lengths[node] = len(producer.value.text)
        return sum(lengths.values()) > _MAX_TEXT

    def merged(self, graph: Graph) -> Node:
        """Make one node that computes the expression."""
        last, dtype = self.nodes[-1], self.dtype
        is_float32 = {dtype, *(graph.value(name).dtype for name in self.names)} == {FLOAT32}
        to = None if is_float32 else dtype
        made = TABLE["Elementwise"].node(self.names, last.outputs, last.origin, expression=self.tree, to=to)
        return replace(made, parts=merged_parts(self.nodes))


def _merge(graph: Graph) -> Graph:
    """Merge trees of elementwise nodes up to a maximum number of operands.

    Parameters
    ----------
    graph : Graph
        Specialised graph: all shapes are known.
    """
    pieces: dict[str, _Piece] = {}  # by output, except for absorbed ones
    for node in graph.nodes:
        piece = _piece(graph, node)
        while piece is not None:
            pieces[piece.output] = piece
            piece = _absorbing(graph, piece, pieces)
    trees = [piece for piece in pieces.values() if len(piece.nodes) > 1]
    old = [node for piece in trees for node in piece.nodes]
    return graph.replaced(old, [piece.merged(graph) for piece in trees]) if trees else graph


def _piece(graph: Graph, node: Node) -> _Piece | None:
    """Expression of a single node; None if it is not elementwise, or its result is bool."""
    inputs = graph.operands(node)
    tree = None if node.semantics is not None else expression_of(node, inputs)
    if tree is None or graph.value(node.outputs[0]).dtype == BOOL:
        return None
    read = {position: node.inputs[position] for position in tree.operands}
    names = tuple(dict.fromkeys(read.values()))
    shapes = [graph.value(name).shape for name in names]
    if None in shapes or broadcast_shapes(*shapes) != graph.value(node.outputs[0]).shape:  # type: ignore[arg-type]
        return None  # an operand that became a number had more axes
    own = tree.substituted({at: Operand(names.index(name)) for at, name in read.items()})
    return _Piece((node,), names, own, graph.value(node.outputs[0]).dtype or FLOAT32)


def _mergeable(graph: Graph, producer: _Piece) -> bool:
    """Whether a value may be computed at its reader: float32; or int8 of finite numbers for which no table is used."""
    if producer.dtype == FLOAT32:
        return True
    read = [name for name in producer.names if name not in graph.constants]
    finite = all(graph.value(name).dtype in INT8_DTYPES for name in read)
    return producer.dtype in INT8_DTYPES and finite and len(producer.names) > 1


def _absorbing(graph: Graph, piece: _Piece, pieces: dict[str, _Piece]) -> _Piece | None:
    """Absorb a piece of which `piece` is the only reader, and remove it from `pieces`; None if there is none."""
    for name in piece.names:
        producer = pieces.get(name)
        if producer is None or not _mergeable(graph, producer):
            continue
        users = graph.users(name)
        if graph.is_output(name) or len(users) > len(piece.nodes) or not {*users} <= {*piece.nodes}:
            continue
        same = graph.value(name).shape == graph.value(piece.output).shape
        if not same and producer.tree.cost > _CHEAP:
            continue
        if piece.exceeds_with(producer):
            continue
        made = piece.absorbing(producer)
        if len(made.tree.nodes) <= _MAX_NODES:
            del pieces[name]
            return made
    return None


def _separate(graph: Graph, node: Node) -> Rewrite | None:
    """Give an elementwise reader of dequantised integers its own DequantizeLinear, so that it reads the integers."""
    for name in node.inputs:
        source = graph.producer(name) if name else None
        if source is not None and source.op == "DequantizeLinear" and len(graph.users(name)) > 1:
            maker = Maker(graph, node)
            own = maker.node("DequantizeLinear", *source.inputs, part="own", **source.attributes)
            maker.new.append(node.reads({name: own}))
            return maker.done()
    return None


run = Pass(
    "elementwise",
    __doc__,
    (dict.fromkeys(FORMS.keys() - QUANTISATION - COMPARISONS.keys(), _separate), _merge),
    needs=("epilogues", "quantised", "views", "volumes"),
)
