"""Reduction of vectors for poolings and reductions: emitters of the binary operations, and loops over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cpuconv.isa.vector import I64, Vector
from cpuconv.runtime.code.llvm import ir

Fold = Callable[[Vector, Any, Any], Any]


def _largest(vec: Vector, a: Any, b: Any) -> Any:
    """The larger of two, NaN where either is NaN; for +0 and -0, either one."""
    return _extreme(vec, "maximum", a, b)


def _smallest(vec: Vector, a: Any, b: Any) -> Any:
    """The smaller of two, NaN where either is NaN; for +0 and -0, either one."""
    return _extreme(vec, "minimum", a, b)


def _extreme(vec: Vector, name: str, a: Any, b: Any) -> Any:
    value = vec._intrinsic(name, [a, b])
    value.fastmath = ir.instructions.FastMathFlags(("nsz",))
    return value


FOLDS: dict[str, Fold] = {"sum": Vector.add, "max": _largest, "min": _smallest}


def repeat(
    vec: Vector, first: Any, last: Any, values: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> Any:
    """Emit `for index in range(first, last): values = body(index, values)`, possibly empty; return the last values.

    `first` and `last` are i64 values.
    """
    builder = vec.builder
    entry = builder.block
    head, inside, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    phis = [builder.phi(value.type) for value in (first, *values)]
    for phi, value in zip(phis, (first, *values), strict=True):
        phi.add_incoming(value, entry)
    index, *current = phis
    builder.cbranch(builder.icmp_signed("<", index, last), inside, done)
    builder.position_at_end(inside)
    following = [builder.add(index, I64(1)), *body(index, list(current))]
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
    return current


def repeat_once(
    vec: Vector, last: Any, values: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """`repeat` from 0 to `last` >= 1: without a test before the first iteration, LLVM spills less."""
    builder = vec.builder
    entry, inside, done = builder.block, builder.append_basic_block("turn"), builder.append_basic_block("turns.done")
    builder.branch(inside)
    builder.position_at_end(inside)
    phis = [builder.phi(value.type) for value in (I64(0), *values)]
    for phi, value in zip(phis, (I64(0), *values), strict=True):
        phi.add_incoming(value, entry)
    index, *current = phis
    following = [builder.add(index, I64(1)), *body(index, list(current))]
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following[0], last), inside, done)
    builder.position_at_end(done)
    return following[1:]


def fold_lanes(vec: Vector, combine: Fold, values: Sequence[Any]) -> Any:
    """Reduce the lanes of each of n vectors, a power of two; each has lanes/n adjacent lanes of the result."""
    values, size = list(values), vec.lanes

    def halves(a: Any, b: Any) -> Any:
        low = [first + lane for first in range(0, 2 * vec.lanes, size) for lane in range(size // 2)]
        return combine(vec, vec.shuffle(a, b, low), vec.shuffle(a, b, [lane + size // 2 for lane in low]))

    while len(values) > 1:
        values = [halves(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        size //= 2
    (total,) = values
    while size > 1:
        size //= 2
        total = combine(vec, total, vec.shuffle(total, total, [lane ^ size for lane in range(vec.lanes)]))
    return total
