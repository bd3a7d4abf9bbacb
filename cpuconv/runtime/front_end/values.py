"""Values of expressions: Python constants, int64 values, bits (results of comparisons), and tuples of these.

Integers behave as with Numba: `//` and `%` round down, and give 0 where the divisor is 0.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.front_end.source import NotInSubsetError

I64, BIT = ir.IntType(64), ir.IntType(1)

_COMPUTED: dict[type[ast.AST], tuple[Callable[[Any, Any], Any], str]] = {
    ast.Add: (operator.add, "add"),
    ast.Sub: (operator.sub, "sub"),
    ast.Mult: (operator.mul, "mul"),
    ast.BitAnd: (operator.and_, "and_"),
    ast.BitOr: (operator.or_, "or_"),
    ast.BitXor: (operator.xor, "xor"),
    ast.LShift: (operator.lshift, "shl"),
    ast.RShift: (operator.rshift, "ashr"),
}
"""The function for constants and the builder's method for int64 values, by operator."""
_COMPARED: dict[type[ast.AST], tuple[Callable[[Any, Any], bool], str]] = {
    ast.Eq: (operator.eq, "=="),
    ast.NotEq: (operator.ne, "!="),
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
}


class Block(NamedTuple):
    """An argument block: the index of each word by name, and the block's address."""

    places: dict[str, int]
    pointer: Any

    def load(self, builder: Any, name: str) -> Any:
        """Load the word with this name."""
        return builder.load(builder.gep(self.pointer, [I64(self.places[name])]))


def is_computed(value: Any) -> bool:
    """Whether a value is only known at run time."""
    return isinstance(value, ir.Value)


def word(builder: Any, value: Any) -> Any:
    """Convert a constant, word or bit to int64.

    Raises
    ------
    NotInSubsetError
        The constant is not an integer.
    """
    if is_computed(value):
        return builder.zext(value, I64) if value.type == BIT else value
    try:
        return I64(operator.index(value))
    except TypeError:
        raise NotInSubsetError(f"{value!r} is no int64") from None


def test(builder: Any, value: Any) -> Any:
    """Return whether a value is not 0: as a bool, or a bit."""
    if not is_computed(value):
        return bool(value)
    return value if value.type == BIT else builder.icmp_signed("!=", value, I64(0))


def computed(builder: Any, kind: ast.operator, left: Any, right: Any) -> Any:
    """Return `left kind right`; None for an unsupported operator."""
    known = not is_computed(left) and not is_computed(right)
    if type(kind) in _COMPUTED:
        of_constants, of_words = _COMPUTED[type(kind)]
        return (
            of_constants(left, right)
            if known
            else getattr(builder, of_words)(word(builder, left), word(builder, right))
        )
    if not isinstance(kind, ast.FloorDiv | ast.Mod):
        return None
    if known:
        quotient, rest = divmod(left, right) if right else (0, 0)
    else:
        quotient, rest = _divided(builder, word(builder, left), word(builder, right))
    return quotient if isinstance(kind, ast.FloorDiv) else rest


def _divided(builder: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Return the quotient, rounded down, and the remainder."""
    known = isinstance(right, ir.Constant) and right.constant
    nothing = None if known else builder.icmp_signed("==", right, I64(0))
    divisor = right if known else builder.select(nothing, I64(1), right)
    quotient, rest = builder.sdiv(left, divisor), builder.srem(left, divisor)
    signs = builder.icmp_signed("<", builder.xor(rest, divisor), I64(0))
    beyond = builder.and_(builder.icmp_signed("!=", rest, I64(0)), signs)
    both = (
        builder.select(beyond, builder.sub(quotient, I64(1)), quotient),
        builder.select(beyond, builder.add(rest, divisor), rest),
    )
    return both if known else tuple(builder.select(nothing, I64(0), each) for each in both)


def compared(builder: Any, kind: ast.cmpop, left: Any, right: Any) -> Any:
    """Return `left kind right` as a bool or a bit; None for an unsupported operator."""
    if isinstance(kind, ast.In) and isinstance(right, tuple):
        found = (compared(builder, ast.Eq(), left, each) for each in right)
        return functools.reduce(functools.partial(either, builder), found, False)
    if type(kind) not in _COMPARED:
        return None
    of_constants, of_words = _COMPARED[type(kind)]
    if not is_computed(left) and not is_computed(right):
        return of_constants(left, right)
    return builder.icmp_signed(of_words, word(builder, left), word(builder, right))


def both(builder: Any, left: Any, right: Any) -> Any:
    """Return the conjunction of two conditions, without short-circuit evaluation."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, bool):
            return other if one else False
    return builder.and_(left, right)


def either(builder: Any, left: Any, right: Any) -> Any:
    """Return the disjunction of two conditions, without short-circuit evaluation."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, bool):
            return True if one else other
    return builder.or_(left, right)


def negated(builder: Any, value: Any) -> Any:
    """Return -value."""
    return builder.neg(word(builder, value)) if is_computed(value) else -value


def extreme(builder: Any, called: Callable[..., Any], left: Any, right: Any) -> Any:
    """Return the minimum or maximum of two values; `called` is `min` or `max`."""
    if not is_computed(left) and not is_computed(right):
        return called(left, right)
    left, right = word(builder, left), word(builder, right)
    return builder.select(builder.icmp_signed("<" if called is min else ">", left, right), left, right)


def merged(builder: Any, ends: Sequence[tuple[Any, Any]]) -> Any:
    """Return the phi of several (value, block) pairs; for tuples, of each element."""
    first = ends[0][0]
    if isinstance(first, tuple):
        blocks = [block for _, block in ends]
        columns = zip(*(value for value, _ in ends), strict=True)
        return tuple(merged(builder, [*zip(each, blocks, strict=True)]) for each in columns)
    found = builder.phi(first.type)
    for value, block in ends:
        found.add_incoming(value, block)
    return found


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each element of a tuple."""
    return tuple(mapped(function, each) for each in value) if isinstance(value, tuple) else function(value)


def elements(value: Any) -> Iterator[Any]:
    """Yield a value, or the elements of a tuple, recursively."""
    if not isinstance(value, tuple):
        yield value
        return
    for each in value:
        yield from elements(each)
