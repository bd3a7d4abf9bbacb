"""Patterns of formulas to search in graphs, written as expressions: ``x * Sigmoid(x)``.

``x = Symbol("x")`` matches any value, the same one wherever it occurs. A number matches a constant of one element that
is near it (`ops.base.near`), ``Free("slope")`` any constant of one element. ``Maybe("bias")`` matches any value, or an
absent operand, named "". Python operators and results of `operator` combine patterns. Sums and products match in either
order. If a number scales or shifts, an equivalent quotient or difference matches too; ``p | q`` matches either. The
design follows rten's matcher.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.base import near
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten, scalar


@dataclass(frozen=True)
class Found:
    """Match of a pattern.

    Attributes
    ----------
    names : Mapping[str, str]
        Value that each symbol matched.
    numbers : Mapping[str, float]
        Constant that each free number matched.
    nodes : tuple[Node, ...]
        Nodes that compute the formula; the first one computes the result.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


class Pattern(abc.ABC):
    """Pattern of a value's computation."""

    @abc.abstractmethod
    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        """Iterate over the matches of the value `name` that extend `found`."""

    @property
    def roots(self) -> frozenset[str]:
        """Operators of the node that computes the result; empty: any value."""
        return frozenset()

    def among(self, operators: Set[str]) -> Pattern | None:
        """Reduce the pattern to these operators; None if nothing can match in a graph with only these."""
        return self

    def __or__(self, other: Pattern) -> Pattern:
        return Either((self, other))

    def __add__(self, other: Pattern | float) -> Pattern:
        if isinstance(other, Pattern):
            return Applied("Add", (self, other))
        return Applied("Add", (self, Number(other))) | Applied("Sub", (self, Number(-other)))

    def __sub__(self, other: Pattern | float) -> Pattern:
        return Applied("Sub", (self, other)) if isinstance(other, Pattern) else self + -other

    def __mul__(self, other: Pattern | float) -> Pattern:
        if isinstance(other, Pattern):
            return Applied("Mul", (self, other))
        return Applied("Mul", (self, Number(other))) | Applied("Div", (self, Number(1 / other)))

    def __truediv__(self, other: Pattern | float) -> Pattern:
        return Applied("Div", (self, other)) if isinstance(other, Pattern) else self * (1 / other)

    def __pow__(self, other: float) -> Pattern:
        power = Applied("Pow", (self, Number(other)))
        if other == 2:
            return power | self * self
        return power | self * (self * self) if other == 3 else power

    __radd__, __rmul__ = __add__, __mul__


@dataclass(frozen=True, eq=False)
class Symbol(Pattern):
    """Any value, or constants with equal elements."""

    name: str

    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        known = found.names.get(self.name)
        if known is None:
            yield Found({**found.names, self.name: name}, found.numbers, found.nodes)
        elif known == name or _equal(graph.constants.get(known), graph.constants.get(name)):
            yield found


@dataclass(frozen=True, eq=False)
class Maybe(Symbol):
    """Any value, or "" for an absent trailing operand."""


@dataclass(frozen=True, eq=False)
class Number(Pattern):
    """Constant of one element near a number."""

    value: float

    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        if near(scalar(graph, name), self.value):
            yield found


@dataclass(frozen=True, eq=False)
class Free(Pattern):
    """Any constant of one element."""

    name: str

    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        number = scalar(graph, name)
        if number is not None and found.numbers.get(self.name, number) == number:
            yield Found(found.names, {**found.numbers, self.name: number}, found.nodes)


@dataclass(frozen=True, eq=False)
class Either(Pattern):
    """Alternative of several patterns."""

    patterns: tuple[Pattern, ...]

    @lazy
    def roots(self) -> frozenset[str]:
        roots = [pattern.roots for pattern in self.patterns]
        return frozenset().union(*roots) if all(roots) else frozenset()

    def among(self, operators: Set[str]) -> Pattern | None:
        left = tuple(found for pattern in self.patterns if (found := pattern.among(operators)) is not None)
        return Either(left) if len(left) > 1 else left[0] if left else None

    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        for pattern in self.patterns:
            yield from pattern.matches(graph, name, found)


@dataclass(frozen=True, eq=False)
class Applied(Pattern):
    """Node of an operator whose inputs match patterns, and whose stated attributes match numbers or texts."""

    op: str
    operands: tuple[Pattern, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @lazy
    def roots(self) -> frozenset[str]:
        return frozenset({self.op})

    def among(self, operators: Set[str]) -> Pattern | None:
        if self.op not in operators:
            return None
        left = [operand.among(operators) for operand in self.operands]
        return None if None in left else replace(self, operands=tuple(left))  # type: ignore[arg-type]

    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        node = graph.producer(name)
        if node is None or node.op != self.op or node.semantics is not None or len(node.inputs) > len(self.operands):
            return
        if not all(isinstance(operand, Maybe) for operand in self.operands[len(node.inputs) :]):
            return
        if not all(_alike(node[attribute], value) for attribute, value in self.attributes.items()):
            return
        read = {"" if (before := graph.producer(each)) is None else before.op for each in node.inputs}
        if any(pattern.roots and pattern.roots.isdisjoint(read) for pattern in self.operands):
            return
        nodes = found.nodes if node in found.nodes else (*found.nodes, node)
        stated = (*node.inputs, *[""] * (len(self.operands) - len(node.inputs)))
        orders = itertools.permutations(stated) if TABLE[self.op].commutative else [stated]
        for inputs in orders:
            yield from _all(graph, self.operands, inputs, Found(found.names, found.numbers, nodes))


def _all(graph: Graph, patterns: Sequence[Pattern], names: Sequence[str], found: Found) -> Iterator[Found]:
    if not patterns:
        yield found
        return
    for more in patterns[0].matches(graph, names[0], found):
        yield from _all(graph, patterns[1:], names[1:], more)


def _alike(attribute: object, value: object) -> bool:
    return near(attribute, value) if isinstance(attribute, float) and isinstance(value, float) else attribute == value


def _equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b)


def operator(name: str) -> Callable[..., Pattern]:
    """Make a constructor of patterns for one operator; its arguments may also be numbers."""

    def apply(*operands: Pattern | float, **attributes: object) -> Pattern:
        patterns = tuple(each if isinstance(each, Pattern) else Number(each) for each in operands)
        return Applied(name, patterns, attributes)

    return apply


def product(a: Pattern, b: Pattern, number: float) -> Pattern:
    """Pattern of a · b · number in any order."""
    return (a * b) * number | (a * number) * b | a * (b * number)


# --- rewrites -------------------------------------------------------------------------------------------------------

Make = Callable[[Maker, Found], bool]  # False: the match is not suitable


@dataclass(frozen=True)
class Formula:
    """Pattern and constructor of its replacement; `alone`: inner values have no other readers and are removed."""

    pattern: Pattern
    make: Make
    alone: bool = True

    def __call__(self, graph: Graph) -> Graph:
        """Replace all matches in a graph."""
        pattern = self.pattern.among({node.op for node in graph.nodes if node.semantics is None})
        if pattern is None:
            return graph
        return rewritten(graph, dict.fromkeys(pattern.roots, replace(self, pattern=pattern)._rule))

    def _rule(self, graph: Graph, node: Node) -> Rewrite | None:
        for found in self.pattern.matches(graph, node.outputs[0], Found()):
            if not self.alone or is_alone(graph, node, found):
                maker = Maker(graph, *(reversed(found.nodes) if self.alone else [node]), origin=node.origin)
                return maker.done() if self.make(maker, found) else None
        return None


def is_alone(graph: Graph, root: Node, found: Found) -> bool:
    """Whether only nodes of the match, and none of its symbols, read its inner values: all but the result of `root`."""
    inside = {id(node) for node in found.nodes}
    inner = [name for node in found.nodes if node is not root for name in node.outputs if name]
    if not {*inner}.isdisjoint(found.names.values()):
        return False
    return all(not graph.is_output(name) and all(id(user) in inside for user in graph.users(name)) for name in inner)
