"""Elementwise expressions of several operands, as trees.

The text of an expression is its identity: expressions with equal text are equal, and kernels are cached by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.functions.table import FUNCTIONS
from cpuconv.kernels.elementwise.functions import EMITTERS, Math


class Expression:
    """A tree: an `Operand`, a `Constant` or an `Apply`."""

    text: str
    arguments: tuple[Expression, ...] = ()

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @lazy
    def nodes(self) -> tuple[Expression, ...]:
        """Its distinct subtrees, each after its own subtrees; the tree itself last."""
        found: dict[Expression, None] = {}
        for argument in self.arguments:
            found.update(dict.fromkeys(argument.nodes))
        return (*found, self)

    @lazy
    def operands(self) -> tuple[int, ...]:
        """Positions of the operands that it reads, in ascending order."""
        return tuple(sorted(node.position for node in self.nodes if isinstance(node, Operand)))

    @property
    def cost(self) -> float:
        """Approximate cycles per vector, each distinct subtree computed once."""
        return sum(FUNCTIONS[node.function].cost for node in self.nodes if isinstance(node, Apply))

    def evaluate(self, operands: Sequence[Any] | Mapping[int, Any]) -> Any:
        """Evaluate with NumPy on float64 arrays, given by position."""
        return _over(self, operands, float, lambda function, values: FUNCTIONS[function].meaning(*values))

    def substituted(self, operands: Sequence[Any] | Mapping[int, Any]) -> Expression:
        """Replace operands by expressions, given by position."""
        return _over(self, operands, Constant, lambda function, values: apply(function, *values))

    def emit(self, vec: Math, known: dict[Expression, Any]) -> Any:
        """Emit the subtrees that are not in `known`, which must have the operands; adds to it, returns the value."""
        emitters = vec.emitters or EMITTERS
        for node in self.nodes:
            if node in known:
                continue
            if isinstance(node, Apply):
                values = [known[argument] for argument in node.arguments]
                known[node] = emitters[node.function](vec, *values)
            elif isinstance(node, Constant):
                known[node] = vec.constant(node.value)
        return known[self]


@dataclass(frozen=True, eq=False, repr=False)
class Operand(Expression):
    """The operand at a position."""

    position: int

    @property
    def text(self) -> str:  # type: ignore[override]
        """``x0``, ``x1``, …"""
        return f"x{self.position}"


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Expression):
    """A number, which is not NaN."""

    value: float

    @property
    def text(self) -> str:  # type: ignore[override]
        """The number, with full precision."""
        return repr(float(self.value))


@dataclass(frozen=True, eq=False, repr=False)
class Parameter(Expression):
    """A number that a kernel reads at run time, by its index among the parameters."""

    position: int

    @property
    def text(self) -> str:  # type: ignore[override]
        """``p0``, ``p1``, …"""
        return f"p{self.position}"


@dataclass(frozen=True, eq=False, repr=False)
class Apply(Expression):
    """Application of a function of `EMITTERS`."""

    function: str
    arguments: tuple[Expression, ...]

    @lazy
    def text(self) -> str:  # type: ignore[override]
        """``function(argument,…)``."""
        return f"{self.function}({','.join(argument.text for argument in self.arguments)})"


def apply(function: str, *arguments: Expression | float) -> Expression:
    """Apply a function of `FUNCTIONS`: insert its formula if it has one, and multiply instead of dividing by a number.

    A `quotient` of an operand is a correctly rounded division; a `quotient` of a computed value is replaced too.
    """
    given = tuple(each if isinstance(each, Expression) else Constant(each) for each in arguments)
    if formula := FUNCTIONS[function].formula:
        return formula(apply, *given)
    divided = function == "div" or (function == "quotient" and isinstance(given[0], Apply))
    if divided and isinstance(given[1], Constant):
        magnitude = abs(given[1].value)
        if 2.0**-126 <= magnitude <= 2.0**126:
            return Apply("mul", (given[0], Constant(1 / given[1].value)))
    return Apply(function, given)


_ARITHMETIC = ("add", "sub", "mul", "div")


def with_parameters(tree: Expression, every: bool = False) -> tuple[Expression, list[float]]:
    """Replace the numbers of a tree by parameters and return both: one kernel serves all scales and offsets.

    `every`: replace all numbers. Otherwise arguments of functions other than add, sub, mul and div stay constants, as
    bounds have few values and must be known not to be NaN.
    """
    own = {
        each
        for node in tree.nodes
        if isinstance(node, Apply) and node.function not in _ARITHMETIC
        for each in node.arguments
    }
    numbers = [node for node in tree.nodes if isinstance(node, Constant) and (every or node not in own)]
    made: dict[Expression, Expression] = {node: Parameter(at) for at, node in enumerate(numbers)}
    for node in tree.nodes:
        if isinstance(node, Apply):
            made[node] = Apply(node.function, tuple(made[each] for each in node.arguments))
        else:
            made.setdefault(node, node)
    return made[tree], [node.value for node in numbers]


def _over(tree: Expression, operands: Any, constant: Any, function: Any) -> Any:
    """Evaluate a tree: `operands` by position, `constant` maps numbers, `function` maps a name and argument values."""
    values: dict[Expression, Any] = {}
    for node in tree.nodes:
        if isinstance(node, Operand):
            values[node] = operands[node.position]
        elif isinstance(node, Constant):
            values[node] = constant(node.value)
        elif isinstance(node, Apply):
            values[node] = function(node.function, [values[argument] for argument in node.arguments])
    return values[tree]


_PARTIAL = ("mul", "div", "max", "min", "prelu")  # may be exactly zero though some arguments are not


def vanishes(tree: Expression) -> bool:
    """Whether the emitted result is exactly zero where all operands are; emitted functions may be slightly inexact.

    An inexact factor far from zero does not matter: its product with an exact zero is exact.
    """
    exact: dict[Expression, bool] = {}
    values: dict[Expression, float] = {}
    for node in tree.nodes:
        if isinstance(node, Apply):
            with np.errstate(all="ignore"):
                made = FUNCTIONS[node.function].meaning(*(np.array([values[each]]) for each in node.arguments))
            values[node] = float(made[0])
            partial = node.function in _PARTIAL
            known = (exact[each] or (partial and abs(values[each]) > 1e-3) for each in node.arguments)
            exact[node] = values[node] == 0 and all(known)
        else:
            values[node], exact[node] = (node.value if isinstance(node, Constant) else 0.0), True
    return exact[tree] and values[tree] == 0
