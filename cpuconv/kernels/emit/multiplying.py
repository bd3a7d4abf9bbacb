"""Multiply-accumulate instructions for 32-bit groups of pixels and weight vectors: one or a few instructions each.

`product.py` says which dot-product kind uses which.
"""

from __future__ import annotations

import functools
from typing import Any

from cpuconv.elements import BF16, F16, F32, Element
from cpuconv.isa.calls import call
from cpuconv.isa.dots import X86, Dot, dot_of
from cpuconv.isa.vector import Vector
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.target import target


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
    if vec.builder.module.triple.startswith("x86"):
        return multiply(vec, "pmaddwd", part, weight)
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
    sums = multiply(vec, "vpmaddubsw", unsigned, signed)
    return multiply(vec, "pmaddwd", sums, ir.Constant(sums.type, [1] * sums.type.count))


def magnitudes_and_signs(vec: Vector, words: Any) -> tuple[Any, Any]:
    """Magnitudes of int8, and masks with all bits set where they are negative."""
    builder = vec.builder
    kind: Any = ir.VectorType(ir.IntType(8), vec.size)
    signed = builder.bitcast(words, kind)
    signs = builder.ashr(signed, ir.Constant(kind, [7] * kind.count))
    magnitudes = call(builder, f"llvm.abs.v{kind.count}i8", kind, [signed, ir.Constant(ir.IntType(1), 0)])
    return builder.bitcast(magnitudes, vec.int_type), builder.bitcast(signs, vec.int_type)


def multiply(vec: Vector, name: str, part: Any, weight: Any) -> Any:
    """Call an x86 instruction without accumulator, such as pmaddwd; its operands may have any vector type."""
    return _call(vec, dot_of(name, 8 * vec.size), part, weight)


def dot(vec: Vector, name: str, packed: Element, part: Any, weight: Any, total: Any) -> Any:
    """Call an instruction of `isa/dots.py`: total + the dot products of groups and weights packed as `packed`."""
    found = dot_of(name, 8 * vec.size)
    if name == "vpdpwssd":
        _keep_whole(vec)
    if found.x == packed and not found.matrix:
        # With equal types, either operand may come first. The last can be a broadcast memory operand: 1.33 times as
        # fast on a Zen 4 where a pixel is multiplied by one vector of weights. On NEON it can be a vector's element.
        part, weight = weight, part
    return _call(vec, found, part, weight, total)


def _call(vec: Vector, found: Dot, part: Any, weight: Any, *total: Any, intrinsic: str = "") -> Any:
    """Call an instruction on operands of any vector type; x86 instructions with accumulator take 32-bit groups."""
    operands = [part, weight]
    if found.machine != X86 or not found.accumulates:
        kind = ir.VectorType(_element(found.x), found.elements)
        operands = [vec.builder.bitcast(value, kind) for value in operands]
    result = total[0].type if total else ir.VectorType(_element(found.sum), found.lanes)
    return call(vec.builder, intrinsic or found.intrinsic, result, [*total, *operands])


def _element(element: Element) -> Any:
    """LLVM's type of an element."""
    if element in (BF16, F16):
        return _bfloat() if element == BF16 else ir.HalfType()
    return ir.FloatType() if element == F32 else ir.IntType(8 * element.bytes)


def half_vector(vec: Vector) -> Any:
    """LLVM's type of a vector of float16."""
    return ir.VectorType(ir.HalfType(), 2 * vec.lanes)


def halves(vec: Vector, part: Any, weight: Any, total: Any) -> Any:
    """total + part·weight per float16 lane, rounded once; `part` can be an element of a vector."""
    kind = half_vector(vec)
    operands = [vec.builder.bitcast(value, kind) for value in (part, weight)]
    return call(vec.builder, f"llvm.fma.v{kind.count}f16", kind, [*operands, total])


def by_lane(vec: Vector, part: Any, weight: Any, total: Any) -> Any:
    """fmlal: lower half of a weight vector times the first element of a group; fmlal2: upper half times the second."""
    found = dot_of("fmlal", 8 * vec.size)
    kind = ir.VectorType(ir.HalfType(), found.elements)
    word, weights = (vec.builder.bitcast(value, kind) for value in (part, weight))
    for element, name in enumerate((".fmlal.", ".fmlal2.")):
        factor = vec.shuffle(word, word, [element] * found.elements)
        total = _call(vec, found, weights, factor, total, intrinsic=found.intrinsic.replace(".fmlal.", name))
    return total


def _keep_whole(vec: Vector) -> None:
    """Stop LLVM from splitting vpdpwssd in two instructions, which it does where sums would wait for each other."""
    features = ",".join(filter(None, (target()[2], "+fast-dpwssd")))
    set.add(vec.builder.function.attributes, f'"target-features"="{features}"')  # past llvmlite's list of known names
