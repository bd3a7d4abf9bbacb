"""NH hashes of memory, two with different keys: the vector part of a fingerprint.

Source: Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC: Fast and Secure Message Authentication" (CRYPTO 1999). A hash
is the sum of (a + key)·(b + key') over pairs of 32-bit integers, modulo 2^64 in each lane. Two different contents have
equal hashes for at most one key in 2^32. The second hash uses the same key shifted by a vector (Toeplitz), which
squares that probability. After each block of `BLOCK` vectors the sums are scrambled by a bijection, as in Collet's
XXH3, and the key restarts.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

BLOCK = 64
"""Vectors per block; the key has one more."""

SUMS = 2
_UNROLL = 8
_AHEAD = 1024  # prefetch distance in bytes: a seventh faster from L3 and memory than hardware prefetch alone
_PRIME = 0x9E3779B1  # Collet's odd 32-bit prime


@dataclass(frozen=True)
class FingerprintTile:
    """Tile of the fingerprint kernel: 32-bit lanes per vector."""

    lanes: int


@MicroKernel
def sum_blocks(tile: FingerprintTile, builder: ir.IRBuilder, x: Any, vectors: Any, key: Any, sums: Any) -> None:
    """sums[0], sums[1] = scrambled NH hashes of `vectors` (at least one) vectors at x."""
    vec = Vector(builder, tile.lanes)
    words = vec.int_type
    wide = ir.VectorType(I64, tile.lanes // 2)
    size = 4 * tile.lanes

    def load(address: Any, offset: Any) -> Any:
        value = builder.load(builder.inttoptr(builder.add(address, offset), words.as_pointer()))
        value.align = 4
        return value

    def product(data: Any, secret: Any) -> Any:
        """Multiply the low by the high 32 bits of each 64-bit lane of data + secret."""
        mixed = builder.bitcast(builder.add(data, secret), wide)
        low = builder.and_(mixed, ir.Constant(wide, [0xFFFFFFFF] * wide.count))
        return builder.mul(low, builder.lshr(mixed, ir.Constant(wide, [32] * wide.count)))

    def scramble(value: Any) -> Any:
        folded = builder.xor(value, builder.lshr(value, ir.Constant(wide, [47] * wide.count)))
        return builder.mul(folded, ir.Constant(wide, [_PRIME] * wide.count))

    def summed(start: Any, end: Any, step: int, initial: list[Any]) -> list[Any]:
        """Emit the loop over vectors start … end-1 of the block, `step` per iteration."""
        entry, loop, done = builder.block, builder.append_basic_block("vectors"), builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed("<", start, end), loop, done)
        builder.position_at_end(loop)
        index = builder.phi(I64)
        index.add_incoming(start, entry)
        totals = [builder.phi(wide) for _ in initial]
        now = list(totals)
        for i in range(step):
            secret = builder.mul(builder.add(index, I64(i)), I64(size))
            place = builder.add(builder.mul(block_start, I64(size)), secret)
            vec.prefetch(vec.pointer(builder.add(x, builder.add(place, I64(_AHEAD)))))
            data = load(x, place)
            for j in range(SUMS):
                now[j] = builder.add(now[j], product(data, load(key, builder.add(secret, I64(j * size)))))
        following = builder.add(index, I64(step))
        index.add_incoming(following, loop)
        for total, first, last in zip(totals, initial, now, strict=True):
            total.add_incoming(first, entry)
            total.add_incoming(last, loop)
        builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
        builder.position_at_end(done)
        results = []
        for first, last in zip(initial, now, strict=True):
            result = builder.phi(wide)
            result.add_incoming(first, entry)
            result.add_incoming(last, loop)
            results.append(result)
        return results

    before, block, after = builder.block, builder.append_basic_block("block"), builder.append_basic_block("done")
    builder.branch(block)
    builder.position_at_end(block)
    block_start = builder.phi(I64)
    block_start.add_incoming(I64(0), before)
    carried = [builder.phi(wide) for _ in range(SUMS)]
    left = builder.sub(vectors, block_start)
    count = builder.select(builder.icmp_signed("<", left, I64(BLOCK)), left, I64(BLOCK))
    even = builder.and_(count, I64(-_UNROLL))
    found = [scramble(each) for each in summed(even, count, 1, summed(I64(0), even, _UNROLL, list(carried)))]
    next_start = builder.add(block_start, I64(BLOCK))
    block_start.add_incoming(next_start, builder.block)
    for phi, value in zip(carried, found, strict=True):
        phi.add_incoming(ir.Constant(wide, [0] * wide.count), before)
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", next_start, vectors), block, after)
    builder.position_at_end(after)
    for j, value in enumerate(found):
        place = builder.inttoptr(builder.add(sums, I64(j * size)), wide.as_pointer())
        builder.store(value, place).align = 4


_call_sum_blocks = sum_blocks.caller()


@kernel("sum_blocks x vectors chunks key sums sums_step")
def fingerprint(tile, worker, before, part, parts, args):
    """Hash each of `chunks` equal parts of `vectors` vectors at x; their sums are `sums_step` bytes apart."""
    size = 4 * tile.lanes
    for chunk in range(args.chunks * part // parts, args.chunks * (part + 1) // parts):
        first = args.vectors * chunk // args.chunks
        count = args.vectors * (chunk + 1) // args.chunks - first
        _call_sum_blocks(
            args.sum_blocks,
            x=args.x + first * size,
            vectors=count,
            key=args.key,
            sums=args.sums + chunk * args.sums_step,
        )
