"""Formulas that graphs are searched for, written as such: ``x * Sigmoid(x)``.

``x = Symbol("x")`` stands for any value, the same one wherever it occurs; a number for a constant of one element that
is near it (`ops.base.near`); ``Free("slope")`` for any constant of one element; ``Maybe("bias")`` for any value, or for
an operand that is left out, named "". Python's operators and what `operator` makes build patterns from these. Sums and
products match either way round, and where a number scales or shifts, a quotient or difference that does the same
matches too; ``p | q`` matches either. In the manner of rten's matcher.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from typing import Any, NamedTuple

import numpy as np

from autotune.data_classes import dataclass
from autotune.locks import lazy
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.base import near
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten, scalar

COMMUTATIVE = {"Add", "Mul", "Sum", "Min", "Max"}


@dataclass(frozen=True)
class Found:
    """What a pattern matched.

    Attributes
    ----------
    names : Mapping[str, str]
        The value that each symbol stands for.
    numbers : Mapping[str, float]
        The constant that each free number stands for.
    nodes : tuple[Node, ...]
        The nodes that compute the formula; the first one gives its result.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


class Pattern(abc.ABC):
    """What a value may be computed by."""

    @abc.abstractmethod
    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        """Each way in which the value `name` is computed so, given what is found already."""

    @property
    def roots(self) -> frozenset[str]:
        """Operators of the node that gives the result; none: it may be any value."""
        return frozenset()

    def among(self, operators: Set[str]) -> Pattern | None:
        """What is left of the pattern in a graph that has these operators alone; None: nothing can match."""
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
    """Any value; or constants of equal elements."""

    name: str

    def matches(self, graph: Graph, name: str, found: Found) -> Iterator[Found]:
        known = found.names.get(self.name)
        if known is None:
            yield Found({**found.names, self.name: name}, found.numbers, found.nodes)
        elif known == name or _equal(graph.constants.get(known), graph.constants.get(name)):
            yield found


@dataclass(frozen=True, eq=False)
class Maybe(Symbol):
    """Any value, or "": an operand at the end that is left out."""


@dataclass(frozen=True, eq=False)
class Number(Pattern):
    """A constant of one element near a number."""

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
    """One of several patterns."""

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
    """A node of an operator, its inputs matching patterns, and its attributes numbers or texts as far as stated."""

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
        if node is None or node.op != self.op or node.meaning is not None or len(node.inputs) > len(self.operands):
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
        orders = itertools.permutations(stated) if self.op in COMMUTATIVE else [stated]
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
    """What makes patterns of nodes of one operator; numbers may stand in the place of patterns."""

    def apply(*operands: Pattern | float, **attributes: object) -> Pattern:
        patterns = tuple(each if isinstance(each, Pattern) else Number(each) for each in operands)
        return Applied(name, patterns, attributes)

    return apply


def product(a: Pattern, b: Pattern, number: float) -> Pattern:
    """a b number, multiplied in any order."""
    return (a * b) * number | (a * number) * b | a * (b * number)


# --- rewrites -------------------------------------------------------------------------------------------------------

Make = Callable[[Maker, Found], bool]  # False: what was found does not suit after all


class Formula(NamedTuple):
    """A pattern and what makes its replacement; `alone`: nobody else reads a value inside, so that all of it goes."""

    pattern: Pattern
    make: Make
    alone: bool = True

    def rule(self, graph: Graph, node: Node) -> Rewrite | None:
        """What comes in the place of the formula whose result a node gives."""
        found = found_at(graph, node, self.pattern, self.alone)
        if found is None:
            return None
        maker = Maker(graph, *(reversed(found.nodes) if self.alone else [node]), origin=node.origin)
        return maker.done() if self.make(maker, found) else None


@dataclass(frozen=True)
class Search:
    """A rewrite of graphs by formulas, one after the other, and the text that says why the result is equal."""

    text: str | None
    formulas: tuple[Formula, ...]

    def __call__(self, graph: Graph) -> Graph:
        """The graph after the rewrite."""
        for formula in self.formulas:
            pattern = formula.pattern.among({node.op for node in graph.nodes if node.meaning is None})
            if pattern is not None:
                graph = rewritten(graph, dict.fromkeys(pattern.roots, formula._replace(pattern=pattern).rule))
        return graph


def found_at(graph: Graph, root: Node, pattern: Pattern, alone: bool = True) -> Found | None:
    """The first match whose result `root` gives, and (`alone`) whose other values nobody else reads."""
    for found in pattern.matches(graph, root.outputs[0], Found()):
        if not alone:
            return found
        inner = [name for node in found.nodes if node is not root for name in node.outputs if name]
        inside = {id(node) for node in found.nodes}
        if all(not graph.gives(name) and all(id(user) in inside for user in graph.users(name)) for name in inner):
            return found
    return None
