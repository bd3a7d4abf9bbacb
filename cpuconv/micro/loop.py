"""Loops in straight-line code: a body emitted once, run for each index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from cpuconv.isa.vector import I64


def loop(builder: ir.IRBuilder, first: int, last: Any, body: Callable[[Any], None]) -> None:
    """Emit `for index in range(first, last): body(index)`; `last` an int, or an i64 value greater than `first`."""
    if isinstance(last, int):
        if first >= last:
            return
        last = I64(last)
    entry, block = builder.block, builder.append_basic_block("loop")
    builder.branch(block)
    builder.position_at_end(block)
    index = builder.phi(I64)
    index.add_incoming(I64(first), entry)
    body(index)
    following = builder.add(index, I64(1))
    index.add_incoming(following, builder.block)
    done = builder.append_basic_block("loop.done")
    builder.cbranch(builder.icmp_signed("<", following, last), block, done)
    builder.position_at_end(done)


def fold(
    builder: ir.IRBuilder, first: Any, last: Any, values: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit `for index in range(first, last): values = body(index, values)`, ends i64; gives the last values."""
    entry = builder.block
    head, block, done = (builder.append_basic_block(name) for name in ("fold", "fold.body", "fold.done"))
    builder.branch(head)
    builder.position_at_end(head)
    index, *carried = [builder.phi(value.type) for value in (first, *values)]
    builder.cbranch(builder.icmp_signed("<", index, last), block, done)
    builder.position_at_end(block)
    following = (builder.add(index, I64(1)), *body(index, list(carried)))
    for phi, initial, value in zip((index, *carried), (first, *values), following, strict=True):
        phi.add_incoming(initial, entry)
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
    return carried


def each(builder: ir.IRBuilder, count: Any, body: Callable[[Any], None]) -> None:
    """Emit `for index in range(count): body(index)`; `count` an i64 value, which may be 0."""

    def step(index: Any, values: list[Any]) -> list[Any]:
        body(index)
        return values

    fold(builder, I64(0), count, [], step)
