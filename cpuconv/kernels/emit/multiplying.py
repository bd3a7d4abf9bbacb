"""Multiply-accumulate instructions for 32-bit groups of pixels and weight vectors: one or a few instructions each.

`product.py` says which dot-product kind uses which.
"""

from __future__ import annotations

import functools
from typing import Any

from cpuconv.elements import BF16, Element
from cpuconv.isa.calls import call
from cpuconv.isa.vector import Vector
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.target import target

X86 = {  # LLVM's intrinsic, by bytes of a vector
    "vdpbf16ps": {64: "llvm.x86.avx512bf16.dpbf16ps.512"},
    "vpdpbusd": {64: "llvm.x86.avx512.vpdpbusd.512", 32: "llvm.x86.avx512.vpdpbusd.256"},
    "vpdpbssd": {32: "llvm.x86.avx2.vpdpbssd.256"},
    "vpdpwssd": {64: "llvm.x86.avx512.vpdpwssd.512", 32: "llvm.x86.avx512.vpdpwssd.256"},
    "vpmaddubsw": {64: "llvm.x86.avx512.pmaddubs.w.512", 32: "llvm.x86.avx2.pmadd.ub.sw"},
    "pmaddwd": {64: "llvm.x86.avx512.pmaddw.d.512", 32: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.sse2.pmadd.wd"},
}


@functools.cache
def _bfloat() -> Any:
    """LLVM's bfloat type, which llvmlite lacks."""

    class BFloat(ir.Type):
        def _to_string(self) -> str:
            return "bfloat"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, BFloat)

        def __hash__(self) -> int:
            return hash(BFloat)

    return BFloat()


def hidden(vec: Vector, value: Any, ordered: bool = False) -> Any:
    """Hide an x86 vector from the optimiser, so that it does not reassociate sums; `ordered`: nor reorder them."""
    kind = ir.FunctionType(value.type, [value.type])
    return vec.builder.asm(kind, "", "=v,0", [value], side_effect=ordered)


def pairs(vec: Vector, part: Any, weight: Any) -> Any:
    """Dot products of two int16 per lane, as int32."""
    builder = vec.builder
    twos: Any = ir.VectorType(ir.IntType(16), 2 * vec.lanes)
    if vec.builder.module.triple.startswith("x86"):
        operands = [builder.bitcast(value, twos) for value in (part, weight)]
        return call(vec.builder, X86["pmaddwd"][vec.size], vec.int_type, operands)
    half = vec.int_constant(16)
    low = [builder.ashr(builder.shl(value, half), half) for value in (part, weight)]
    high = [builder.ashr(value, half) for value in (part, weight)]
    return builder.add(builder.mul(*low), builder.mul(*high))


def paired(vec: Vector, part: Any, weight: Any, total: Any) -> Any:
    """total + dot products of two int16 per lane; on x86 hidden from the optimiser, which would add the dot products
    of several groups first, and spill."""
    added = vec.builder.add(total, pairs(vec, part, weight))
    return hidden(vec, added, ordered=True) if vec.builder.module.triple.startswith("x86") else added


def flipped(vec: Vector, factor: Any, magnitudes: Any, flips: Any, total: Any) -> Any:
    """total + magnitudes·(factor xor flips): dot products of four int8 per lane; hidden from the optimiser, which would
    spill."""
    added = vec.builder.add(total, sums_of_four(vec, magnitudes, vec.builder.xor(factor, flips)))
    return hidden(vec, added, ordered=True)


def sums_of_four(vec: Vector, unsigned: Any, signed: Any) -> Any:
    """Dot products of four int8 per lane, whose pairs must fit int16."""
    builder = vec.builder
    twos: Any = ir.VectorType(ir.IntType(16), 2 * vec.lanes)
    kind: Any = ir.VectorType(ir.IntType(8), 4 * vec.lanes)
    operands = [builder.bitcast(each, kind) for each in (unsigned, signed)]
    pairs = call(builder, X86["vpmaddubsw"][vec.size], twos, operands)
    ones = ir.Constant(twos, [1] * (2 * vec.lanes))
    return call(builder, X86["pmaddwd"][vec.size], vec.int_type, [pairs, ones])


def magnitudes_and_signs(vec: Vector, words: Any) -> tuple[Any, Any]:
    """Magnitudes of int8, and masks with all bits set where they are negative."""
    builder = vec.builder
    kind: Any = ir.VectorType(ir.IntType(8), vec.size)
    signed = builder.bitcast(words, kind)
    signs = builder.ashr(signed, ir.Constant(kind, [7] * kind.count))
    magnitudes = call(builder, f"llvm.abs.v{kind.count}i8", kind, [signed, ir.Constant(ir.IntType(1), 0)])
    return builder.bitcast(magnitudes, vec.int_type), builder.bitcast(signs, vec.int_type)


def dot(vec: Vector, name: str, x: Element, packed: Element, part: Any, weight: Any, total: Any) -> Any:
    """Call an instruction of `Isa.dots` for groups of `x` and weights of `packed`; NEON's take element vectors."""
    if name == "vpdpwssd":
        _keep_whole(vec)
    if name in X86:
        # With equal types, either operand may come first. The last can be a broadcast memory operand: 1.33 times as
        # fast on a Zen 4 where a pixel is multiplied by one vector of weights.
        operands = [weight, part] if x == packed else [part, weight]
        return call(vec.builder, X86[name][vec.size], total.type, [total, *operands])
    element: Any = _bfloat() if x == BF16 else ir.IntType(8)
    kind = ir.VectorType(element, vec.size // x.bytes)
    suffix = f".v4{'f32' if x == BF16 else 'i32'}.v{kind.count}{'bf16' if x == BF16 else 'i8'}"
    if name == "bfmmla":  # has one vector type only
        suffix = ""
    operands = [vec.builder.bitcast(value, kind) for value in (part, weight)]
    return call(vec.builder, f"llvm.aarch64.neon.{name}{suffix}", total.type, [total, *operands])


def by_lane(vec: Vector, part: Any, weight: Any, total: Any) -> Any:
    """fmlal: lower half of a weight vector times the first element of a group; fmlal2: upper half times the second."""
    kind: Any = ir.VectorType(ir.HalfType(), 2 * vec.lanes)
    word, weights = (vec.builder.bitcast(value, kind) for value in (part, weight))
    for element, name in enumerate(("fmlal", "fmlal2")):
        factor = vec.shuffle(word, word, [element] * kind.count)
        called = f"llvm.aarch64.neon.{name}.v4f32.v8f16"
        total = call(vec.builder, called, total.type, [total, weights, factor])
    return total


def _keep_whole(vec: Vector) -> None:
    """Stop LLVM from splitting vpdpwssd in two instructions, which it does where sums would wait for each other."""
    features = ",".join(filter(None, (target()[2], "+fast-dpwssd")))
    set.add(vec.builder.function.attributes, f'"target-features"="{features}"')  # past llvmlite's list of known names
