"""Instructions of AVX-512, and those of AVX-VNNI, as functions that a CPU with AVX2 can run.

Each is written as the instruction is documented (Intel's software developer's manual), of vectors of 512 bits by the
instruction of AVX2 on both halves where there is one. All results have the instruction's bits, with these exceptions:

- `rcp14`: 1/a without the last nine bits of its mantissa, which is as far from 1/a as the instruction may be;
- `dpbf16ps`: two fused multiply-adds, the odd elements' first, rounded to the nearest, subnormal numbers being zeros
  in and out. A CPU may round once, or begin with the even ones: then the last bit of a sum differs;
- NaNs: the payload may differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
_LARGEST = 600.0  # an exponent beyond which every float is 0 or infinite; powers of it are doubles
_NUMBER, _SIGN, _EXPONENT = 0x7FFFFFFF, -(1 << 31), 0x7F800000


class Row(NamedTuple):
    """An intrinsic of LLVM's: its types, and what emits its result.

    Attributes
    ----------
    feature : str
        LLVM's name of what CPUs have that have it.
    result, arguments : LLVM types
    emit : callable
        emit(builder, *arguments) gives the value.
    inlined : bool
        Long code is called instead, which takes half the time to compile.
    """

    feature: str
    result: Any
    arguments: tuple[Any, ...]
    emit: Callable[..., Any]
    inlined: bool = True


def vector(kind: Any, count: int) -> Any:
    return ir.VectorType(kind, count)


def every(kind: Any, value: float) -> Any:
    """A constant of as many lanes as the type has; of one that has none it is the number."""
    return ir.Constant(kind, [value] * kind.count) if isinstance(kind, ir.VectorType) else ir.Constant(kind, value)


def call(builder: ir.IRBuilder, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    module = builder.module
    form = ir.FunctionType(result, [each.type for each in arguments])
    return builder.call(module.globals.get(name) or ir.Function(module, form, name), arguments)


def _lanes(builder: ir.IRBuilder, value: Any, first: int, count: int) -> Any:
    return builder.shuffle_vector(value, value, ir.Constant(vector(I32, count), list(range(first, first + count))))


def _halves(builder: ir.IRBuilder, value: Any) -> list[Any]:
    count = value.type.count // 2
    return [_lanes(builder, value, first, count) for first in (0, count)]


def _joined(builder: ir.IRBuilder, low: Any, high: Any) -> Any:
    count = 2 * low.type.count
    return builder.shuffle_vector(low, high, ir.Constant(vector(I32, count), list(range(count))))


def by_halves(emit: Callable[..., Any]) -> Callable[..., Any]:
    """The same of vectors twice as long."""

    def both(builder: ir.IRBuilder, *values: Any) -> Any:
        halves = zip(*(_halves(builder, value) for value in values), strict=True)
        return _joined(builder, *(emit(builder, *each) for each in halves))

    return both


def _avx2(name: str, kind: Any, count: int) -> Callable[..., Any]:
    """An instruction of AVX2 on both halves, which gives so many lanes of a half."""
    return by_halves(lambda builder, *values: call(builder, f"llvm.x86.{name}", vector(kind, count), values))


def _pairs(builder: ir.IRBuilder, x: Any, w: Any) -> Any:
    return call(builder, "llvm.x86.avx2.pmadd.wd", vector(I32, 8), [x, w])


def _split(builder: ir.IRBuilder, value: Any, signed: bool) -> list[Any]:
    """The even and the odd bytes of a vector of words, as int16."""
    kind = vector(I16, 2 * value.type.count)
    value, eight = builder.bitcast(value, kind), every(kind, 8)
    if signed:
        return [builder.ashr(builder.shl(value, eight), eight), builder.ashr(value, eight)]
    return [builder.and_(value, every(kind, 0xFF)), builder.lshr(value, eight)]


def quads(signed: bool) -> Callable[..., Any]:
    """Sums and four products of bytes each, modulo 2³²; the second operand's are signed, the first's perhaps."""

    def emit(builder: ir.IRBuilder, total: Any, x: Any, w: Any) -> Any:
        for pair in zip(_split(builder, x, signed), _split(builder, w, True), strict=True):
            total = builder.add(total, _pairs(builder, *pair))
        return total

    return emit


def _twos(builder: ir.IRBuilder, total: Any, x: Any, w: Any) -> Any:
    """Sums and two products of int16 each, modulo 2³²."""
    kind = vector(I16, 16)
    return builder.add(total, _pairs(builder, builder.bitcast(x, kind), builder.bitcast(w, kind)))


def _flushed(builder: ir.IRBuilder, value: Any) -> Any:
    """Floats, zeros in place of subnormal numbers."""
    kind = vector(I32, value.type.count)
    bits = builder.bitcast(value, kind)
    small = builder.icmp_signed("==", builder.and_(bits, every(kind, _EXPONENT)), every(kind, 0))
    return builder.bitcast(builder.select(small, builder.and_(bits, every(kind, _SIGN)), bits), value.type)


def fused(builder: ir.IRBuilder, total: Any, x: Any, w: Any) -> Any:
    """total + x·w, rounded once, subnormal numbers being zeros in and out."""
    values = [_flushed(builder, each) for each in (x, w, total)]
    return _flushed(builder, call(builder, f"llvm.fma.v{total.type.count}f32", total.type, values))


def bfloat_parts(builder: ir.IRBuilder, word: Any) -> list[Any]:
    """The even and the odd bfloat16 elements of a vector of words, as floats."""
    kind = vector(F32, word.type.count)
    even, odd = builder.shl(word, every(word.type, 16)), builder.and_(word, every(word.type, -(1 << 16)))
    return [builder.bitcast(each, kind) for each in (even, odd)]


def _bfloat_dot(builder: ir.IRBuilder, total: Any, x: Any, w: Any) -> Any:
    (x_even, x_odd), (w_even, w_odd) = (bfloat_parts(builder, each) for each in (x, w))
    return fused(builder, fused(builder, total, x_odd, w_odd), x_even, w_even)


def _to_bfloat(builder: ir.IRBuilder, value: Any) -> Any:
    """Rounded to the nearest, ties to even; subnormal numbers are zeros, NaNs quiet."""
    kind = vector(I32, value.type.count)
    half, bits = every(kind, 16), builder.bitcast(_flushed(builder, value), kind)
    odd = builder.and_(builder.lshr(bits, half), every(kind, 1))
    nearest = builder.lshr(builder.add(builder.add(bits, every(kind, 0x7FFF)), odd), half)
    quiet = builder.or_(builder.lshr(bits, half), every(kind, 0x40))
    number = builder.fcmp_ordered("ord", value, value)
    return builder.trunc(builder.select(number, nearest, quiet), vector(I16, value.type.count))


def _masked(emit: Callable[..., Any]) -> Callable[..., Any]:
    """With what unmasked lanes keep, the mask, and perhaps how to round, which is as the CPU is set to."""

    def masked(builder: ir.IRBuilder, *values: Any) -> Any:
        *operands, kept, mask = values[:-1] if values[-1].type == I32 else values
        lanes = builder.bitcast(mask, vector(ir.IntType(1), kept.type.count))
        return builder.select(lanes, emit(builder, *operands), kept)

    return masked


def _scaled(builder: ir.IRBuilder, a: Any, n: Any) -> Any:
    """a·2^⌊n⌋, rounded once: in doubles, where every product is exact."""
    kind, ends = vector(F64, a.type.count), (float("-inf"), float("inf"))
    wide = builder.fpext(call(builder, f"llvm.floor.v{a.type.count}f32", a.type, [n]), kind)
    for relation, end in ((">", -_LARGEST), ("<", _LARGEST)):
        wide = builder.select(builder.fcmp_ordered(relation, wide, every(kind, end)), wide, every(kind, end))
    biased = builder.add(builder.fptosi(wide, vector(I32, a.type.count)), every(vector(I32, a.type.count), 1023))
    long = vector(I64, a.type.count)
    power = builder.bitcast(builder.shl(builder.zext(biased, long), every(long, 52)), kind)
    number = builder.fcmp_ordered("ord", n, n)
    power = builder.select(number, power, every(kind, float("nan")))
    is_end = [builder.fcmp_ordered("==", n, every(n.type, end)) for end in ends]
    for at, value in zip(is_end, (0.0, ends[1]), strict=True):
        power = builder.select(at, every(kind, value), power)
    result = builder.fptrunc(builder.fmul(builder.fpext(a, kind), power), a.type)
    nothing = builder.fcmp_unordered("uno", a, a)
    for at, value in zip(is_end, (0.0, ends[1]), strict=True):  # of NaN, too
        result = builder.select(builder.and_(at, nothing), every(a.type, value), result)
    return result


def _reciprocal(builder: ir.IRBuilder, a: Any) -> Any:
    kind = vector(I32, a.type.count)
    exact = builder.fdiv(every(a.type, 1.0), a)
    shortened = builder.bitcast(builder.and_(builder.bitcast(exact, kind), every(kind, -(1 << 9))), a.type)
    return builder.select(builder.fcmp_ordered("ord", exact, exact), shortened, exact)


def _picked(builder: ir.IRBuilder, low: Any, index: Any, high: Any) -> Any:
    """Element index[i] of both vectors, the lowest bits of it."""
    kind, count = low.type.element, low.type.count
    table = builder.alloca(ir.ArrayType(kind, 2 * count))
    table.align = 64
    for half, value in enumerate((low, high)):
        place = builder.gep(table, [I32(0), I32(half * count)])
        builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = 1
    result = every(low.type, 0)
    for lane in range(count):
        asked = builder.and_(builder.extract_element(index, I32(lane)), index.type.element(2 * count - 1))
        asked = asked if asked.type == I32 else builder.zext(asked, I32)
        result = builder.insert_element(result, builder.load(builder.gep(table, [I32(0), asked])), I32(lane))
    return result


def rows() -> dict[str, Row]:
    """By LLVM's name."""
    bytes_, halves, words = (vector(kind, 512 // kind.width) for kind in (I8, I16, I32))
    floats, short, mask = vector(F32, 16), vector(I32, 8), I16
    called = functools.partial(Row, inlined=False)
    made = {
        "avx512.vpdpbusd.512": called("avx512vnni", words, (words,) * 3, by_halves(quads(False))),
        "avx512.vpdpbusd.256": called("avxvnni", short, (short,) * 3, quads(False)),
        "avx2.vpdpbssd.256": called("avxvnniint8", short, (short,) * 3, quads(True)),
        "avx10.vpdpbssd.512": called("avx10.2", words, (words,) * 3, by_halves(quads(True))),
        "avx512.vpdpwssd.512": Row("avx512vnni", words, (words,) * 3, by_halves(_twos)),
        "avx512.vpdpwssd.256": Row("avxvnni", short, (short,) * 3, _twos),
        "avx512.pmaddubs.w.512": Row("avx512bw", halves, (bytes_,) * 2, _avx2("avx2.pmadd.ub.sw", I16, 16)),
        "avx512.pmaddw.d.512": Row("avx512bw", words, (halves,) * 2, by_halves(_pairs)),
        "avx512.packssdw.512": Row("avx512bw", halves, (words,) * 2, _avx2("avx2.packssdw", I16, 16)),
        "avx512.packuswb.512": Row("avx512bw", bytes_, (halves,) * 2, _avx2("avx2.packuswb", I8, 32)),
        "avx512.packsswb.512": Row("avx512bw", bytes_, (halves,) * 2, _avx2("avx2.packsswb", I8, 32)),
        "avx512.mask.cvtps2dq.512": Row(
            "avx512f", words, (floats, words, mask, I32), _masked(_avx2("avx.cvt.ps2dq.256", I32, 8))
        ),
        "avx512.mask.scalef.ps.512": called("avx512f", floats, (*[floats] * 3, mask, I32), _masked(_scaled)),
        "avx512.rcp14.ps.512": Row("avx512f", floats, (floats, floats, mask), _masked(_reciprocal)),
        "avx512.vpermi2var.ps.512": called("avx512f", floats, (floats, words, floats), _picked),
        "avx512.vpermi2var.qi.512": called("avx512vbmi", bytes_, (bytes_,) * 3, _picked),
        "avx512bf16.dpbf16ps.512": called("avx512bf16", floats, (floats, words, words), _bfloat_dot),
        "avx512bf16.cvtneps2bf16.512": called("avx512bf16", vector(I16, 16), (floats,), _to_bfloat),
        "avx512bf16.cvtneps2bf16.256": called("avx512bf16", vector(I16, 8), (vector(F32, 8),), _to_bfloat),
    }
    return {f"llvm.x86.{name}": row for name, row in made.items()}
