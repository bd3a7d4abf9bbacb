"""Counted loops in LLVM IR: the body is emitted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpuconv.isa.vector import I64
from cpuconv.runtime.code.llvm import ir


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
