"""Emitters for drivers that search: bits of comparisons, keys and int64 words in memory."""

from __future__ import annotations

from typing import Any

from cpuconv.isa.calls import call
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.runtime.code.llvm import ir


@emitter
def bits_at_least(tile: Any, vec: Vector, address: Any, bound: Any) -> Any:
    """A word whose bit i says whether key i of a vector at `address` is at least `bound`."""
    builder, word = vec.builder, ir.IntType(8 * tile.key_bytes)
    keys = builder.load(builder.inttoptr(address, ir.VectorType(word, vec.lanes).as_pointer()))
    keys.align = tile.key_bytes
    bound = vec.splat(builder.trunc(bound, word) if word.width < I64.width else bound)
    holds = builder.icmp_signed(">=", keys, bound)
    return builder.zext(builder.bitcast(holds, ir.IntType(vec.lanes)), I64)


@emitter
def key_at(tile: Any, vec: Vector, keys: Any, index: Any) -> Any:
    """The key at an index, as a word."""
    builder, word = vec.builder, ir.IntType(8 * tile.key_bytes)
    key = builder.load(builder.gep(builder.inttoptr(keys, word.as_pointer()), [index]))
    return builder.sext(key, I64) if word.width < I64.width else key


@emitter
def set_word(tile: Any, vec: Vector, address: Any, index: Any, value: Any) -> None:
    """Set the int64 at address + 8·index."""
    builder = vec.builder
    builder.store(value, builder.gep(builder.inttoptr(address, I64.as_pointer()), [index]))


@emitter
def count_bits(tile: Any, vec: Vector, bits: Any) -> Any:
    """Number of set bits of a word."""
    return call(vec.builder, "llvm.ctpop.i64", I64, [bits])


@emitter
def lowest_bit(tile: Any, vec: Vector, bits: Any) -> Any:
    """Index of the lowest set bit of a word that is not 0."""
    return call(vec.builder, "llvm.cttz.i64", I64, [bits, ir.IntType(1)(1)])
