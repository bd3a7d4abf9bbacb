"""Loads that widen elements of any type to the 32-bit lanes of a vector, and stores that narrow them.

A narrow vector has as many elements, contiguous in memory, as the emitter has lanes. With a `mask`, elements where it
is not set are neither read nor written, and load as zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cpuconv.elements import BF16, F16, F32, PART_STEP, S8, S16, S32, U8, Element
from cpuconv.isa.calls import call
from cpuconv.isa.features import has_feature, rounds_to_half
from cpuconv.isa.vector import F32 as FLOAT
from cpuconv.isa.vector import I32, Vector
from cpuconv.runtime.code.llvm import ir

I8, I16, F16_TYPE = ir.IntType(8), ir.IntType(16), ir.HalfType()
_RANGES = {S8: (-(1 << 7), (1 << 7) - 1), U8: (0, (1 << 8) - 1), S16: (-(1 << 15), (1 << 15) - 1), S32: None}
_MEMORY = {F32: FLOAT, BF16: I16, F16: I16, S8: I8, U8: I8, S16: I16, S32: I32}  # LLVM type of an element in memory
_ROUNDS_TO_INFINITY = 0x7F7F8000  # bits of the least float32 that rounds to an infinite bfloat16
_ROUND_BY = {16: "512", 8: "256"}  # lanes of the instructions that round to bfloat16, and the width in their names


def load_as_float(vec: Vector, element: Element, address: Any, mask: Any = None) -> Any:
    """lanes[i] = the element at address + element.part_bytes·i as float32; integers above 2²⁴ are rounded.

    float16 stays float16 in a vector of `halves`. Parts of an element are `PART_STEP` bytes apart, and are added.
    """
    if element.parts > 1:
        total, *parts = (load_as_float(vec, BF16, place, mask) for place in _places(vec, element, address))
        return functools.reduce(vec.add, parts, total)
    value = load_narrow(vec, element, address, mask)
    if element in _FROM_MEMORY:
        return _FROM_MEMORY[element](vec, value)
    return vec.builder.sitofp(_extended(vec, element, value), vec.type)


def as_float(vec: Vector, element: Element, value: Any) -> Any:
    """Convert bfloat16 or float16, loaded as 16-bit integers, to float32."""
    return _FROM_MEMORY[element](vec, value)


def load_as_int(vec: Vector, element: Element, address: Any, mask: Any = None) -> Any:
    """lanes[i] = the integer element at address + element.bytes·i as an int32."""
    _must_be_integer(element)
    return _extended(vec, element, load_narrow(vec, element, address, mask))


def store_float(vec: Vector, element: Element, value: Any, address: Any, mask: Any = None) -> None:
    """Element at address + element.part_bytes·i = lanes[i], converted from float32; parts are `PART_STEP` bytes apart.

    bfloat16 and float16 round to nearest, ties to even; NaN stays NaN. With AVX512_BF16, subnormal numbers become
    bfloat16 zeros. For integer elements, lanes must be integers within the element's range.
    """
    if element.parts > 1:
        found = split_to_bfloat16(vec, value, element.parts)
        for part, place in zip(found, _places(vec, element, address), strict=True):
            store_narrow(vec, BF16, part, place, mask)
    elif element in _TO_MEMORY:
        store_narrow(vec, element, _TO_MEMORY[element](vec, value), address, mask)
    else:
        store_narrow(vec, element, _truncated(vec, element, vec.builder.fptosi(value, vec.int_type)), address, mask)


def _places(vec: Vector, element: Element, address: Any) -> list[Any]:
    return [vec.offset(address, PART_STEP * part) for part in range(element.parts)]


def split_to_bfloat16(vec: Vector, value: Any, count: int) -> list[Any]:
    """Split float32 lanes into `count` bfloat16, whose bits are 16-bit integers, as `elements.split_to_bfloat16`.

    With AVX512_BF16, numbers that neither are nor become infinite take five instructions a part.
    """
    if not has_feature("avx512bf16") or vec.lanes not in _ROUND_BY:
        return _split_any(vec, value, count)
    builder = vec.builder
    limit = builder.bitcast(vec.int_constant(_ROUNDS_TO_INFINITY), vec.type)
    lanes = builder.fcmp_ordered("<", vec.absolute(value), limit)
    mask: Any = ir.IntType(vec.lanes)
    usual = builder.icmp_signed("==", builder.bitcast(lanes, mask), mask(-1))
    ways: list[tuple[list[Any], Any]] = []
    with builder.if_else(usual, likely=True) as (then, otherwise):
        with then:
            rest, found = value, list[Any]()
            for part in range(count):
                found.append(_bfloat_by_instruction(vec, rest))
                if part < count - 1:
                    rest = vec.sub(rest, _float_of_bfloat(vec, found[-1]))
            ways.append((found, builder.block))
        with otherwise:
            ways.append((_split_any(vec, value, count), builder.block))
    made = []
    for parts in zip(*(found for found, _ in ways), strict=True):
        phi = builder.phi(parts[0].type)
        for part, (_, block) in zip(parts, ways, strict=True):
            phi.add_incoming(part, block)
        made.append(phi)
    return made


def _split_any(vec: Vector, value: Any, count: int) -> list[Any]:
    """`split_to_bfloat16` of any numbers, on any CPU."""
    builder, found = vec.builder, []
    infinite, upper, half = (vec.int_constant(bits) for bits in (0x7F800000, -0x10000, 16))
    finite = builder.fcmp_ordered("<", vec.absolute(value), builder.bitcast(infinite, vec.type))
    rest = builder.select(finite, value, vec.constant(0.0))
    for part in range(count):
        bits = builder.bitcast(rest, vec.int_type)
        subnormal = builder.icmp_signed("==", builder.and_(bits, infinite), vec.int_constant(0))
        bits = builder.select(subnormal, builder.and_(bits, vec.int_constant(-(1 << 31))), bits)
        odd = builder.and_(builder.lshr(bits, half), vec.int_constant(1))
        near = builder.and_(builder.add(builder.add(bits, vec.int_constant(0x7FFF)), odd), upper)
        overflows = builder.icmp_signed("==", builder.and_(near, infinite), infinite)
        near = builder.select(overflows, builder.and_(bits, upper), near)
        rest = vec.sub(rest, builder.bitcast(near, vec.type))
        if part == count - 1:  # the sum is an infinity, or a NaN with its quiet bit
            near = builder.select(finite, near, builder.bitcast(vec.add(value, value), vec.int_type))
        found.append(builder.trunc(builder.lshr(near, half), _kind(vec, I16)))
    return found


def store_int(vec: Vector, element: Element, value: Any, address: Any, mask: Any = None, *, fits: bool = False) -> None:
    """Integer element at address + element.bytes·i = lanes[i], int32, saturated to the element's range.

    `fits`: all lanes are within the range, and saturation is left out.
    """
    _must_be_integer(element)
    if not fits and (ends := _RANGES[element]) is not None:
        value = clamped(vec, value, *ends)
    store_narrow(vec, element, _truncated(vec, element, value), address, mask)


def clamped(vec: Vector, value: Any, low: int, high: int) -> Any:
    """min(max(value, low), high) of int32 lanes."""
    builder = vec.builder
    for relation, bound in ((">", low), ("<", high)):
        end = vec.int_constant(bound)
        value = builder.select(builder.icmp_signed(relation, value, end), value, end)
    return value


def _must_be_integer(element: Element) -> None:
    if element not in _RANGES:
        raise TypeError(f"{element} is no integer")


# --- memory ---------------------------------------------------------------------------------------------------------


def _kind(vec: Vector, scalar: Any) -> Any:
    return ir.VectorType(scalar, vec.lanes) if vec.lanes > 1 else scalar


def load_narrow(vec: Vector, element: Element, address: Any, mask: Any = None) -> Any:
    """lanes[i] = the element at address + element.bytes·i, as float32 or as an integer of its own size."""
    kind = _kind(vec, _MEMORY[element])
    place = vec.builder.bitcast(address, kind.as_pointer())
    if mask is None:
        value = vec.builder.load(place)
        value.align = element.bytes
        return value
    nothing = ir.Constant(kind, [_MEMORY[element](0)] * vec.lanes)
    return _masked(vec, element, "load", [place, I32(element.bytes), mask, nothing], kind)


def store_narrow(vec: Vector, element: Element, value: Any, address: Any, mask: Any = None) -> None:
    """Element at address + element.bytes·i = lanes[i], which are already narrow."""
    place = vec.builder.bitcast(address, _kind(vec, _MEMORY[element]).as_pointer())
    if mask is None:
        vec.builder.store(value, place).align = element.bytes
    else:
        _masked(vec, element, "store", [value, place, I32(element.bytes), mask], ir.VoidType())


def _masked(vec: Vector, element: Element, name: str, arguments: list[Any], result: Any) -> Any:
    text = f"v{vec.lanes}{'f32' if element == F32 else f'i{8 * element.bytes}'}"
    return call(vec.builder, f"llvm.masked.{name}.{text}.p0{text}", result, arguments)


# --- from memory ----------------------------------------------------------------------------------------------------


def _extended(vec: Vector, element: Element, value: Any) -> Any:
    """Extend integers of an element's size to int32."""
    if element == S32:
        return value
    return (vec.builder.zext if element == U8 else vec.builder.sext)(value, vec.int_type)


def _float_of_bfloat(vec: Vector, value: Any) -> Any:
    upper = vec.builder.shl(vec.builder.zext(value, vec.int_type), vec.int_constant(16))
    return vec.builder.bitcast(upper, vec.type)


def _float_of_half(vec: Vector, value: Any) -> Any:
    if vec.halves:
        return vec.builder.bitcast(value, vec.type)
    if rounds_to_half():
        return vec.builder.fpext(vec.builder.bitcast(value, _kind(vec, F16_TYPE)), vec.type)
    builder, bits = vec.builder, vec.builder.zext(value, vec.int_type)
    magnitude = builder.shl(builder.and_(bits, vec.int_constant(0x7FFF)), vec.int_constant(13))
    scaled = vec.mul(builder.bitcast(magnitude, vec.type), vec.constant(2.0**112))  # the difference of the exponents
    finite = builder.icmp_signed("<", magnitude, vec.int_constant(0x1F << 23))
    special = builder.or_(magnitude, vec.int_constant(0xFF << 23))
    sign = builder.shl(builder.and_(bits, vec.int_constant(0x8000)), vec.int_constant(16))
    number = builder.select(finite, builder.bitcast(scaled, vec.int_type), special)
    return builder.bitcast(builder.or_(number, sign), vec.type)


# --- to memory ------------------------------------------------------------------------------------------------------


def _truncated(vec: Vector, element: Element, value: Any) -> Any:
    """Truncate int32 to the low bits of an element's size."""
    return value if element == S32 else vec.builder.trunc(value, _kind(vec, _MEMORY[element]))


def _bfloat_of(vec: Vector, value: Any) -> Any:
    if has_feature("avx512bf16"):
        return _bfloat_by_instruction(vec, value)
    builder, bits = vec.builder, vec.builder.bitcast(value, vec.int_type)
    half = vec.int_constant(16)
    odd = builder.and_(builder.lshr(bits, half), vec.int_constant(1))
    nearest = builder.lshr(builder.add(builder.add(bits, vec.int_constant(0x7FFF)), odd), half)
    quiet = builder.or_(builder.lshr(bits, half), vec.int_constant(0x40))  # a NaN whose upper half may be infinity
    number = builder.fcmp_ordered("ord", value, value)
    return builder.trunc(builder.select(number, nearest, quiet), _kind(vec, I16))


def _bfloat_by_instruction(vec: Vector, value: Any) -> Any:
    lanes = max(vec.lanes, min(_ROUND_BY))
    if vec.lanes == 1:
        undefined = ir.Constant(ir.VectorType(FLOAT, lanes), ir.Undefined)
        value = vec.builder.insert_element(undefined, value, I32(0))
    elif vec.lanes < lanes:
        value = vec.shuffle(value, value, [lane % vec.lanes for lane in range(lanes)])
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{_ROUND_BY[lanes]}"
    made = call(vec.builder, name, ir.VectorType(I16, lanes), [value])
    if vec.lanes == 1:
        return vec.builder.extract_element(made, I32(0))
    return made if vec.lanes == lanes else vec.shuffle(made, made, range(vec.lanes))


def _half_of(vec: Vector, value: Any) -> Any:
    if vec.halves:
        return vec.builder.bitcast(value, _kind(vec, I16))
    if rounds_to_half():
        return vec.builder.bitcast(vec.builder.fptrunc(value, _kind(vec, F16_TYPE)), _kind(vec, I16))
    builder, bits = vec.builder, vec.builder.bitcast(value, vec.int_type)
    magnitude = builder.and_(bits, vec.int_constant(0x7FFFFFFF))
    sign = builder.lshr(builder.and_(bits, vec.int_constant(-(1 << 31))), vec.int_constant(16))

    def choose(relation: str, bound: int, one: Any, other: Any) -> Any:
        return builder.select(builder.icmp_signed(relation, magnitude, vec.int_constant(bound)), one, other)

    odd = builder.and_(builder.lshr(magnitude, vec.int_constant(13)), vec.int_constant(1))
    rounded = builder.add(builder.add(magnitude, odd), vec.int_constant(0xFFF - (112 << 23)))
    normal = builder.lshr(rounded, vec.int_constant(13))
    shifted = vec.add(builder.bitcast(magnitude, vec.type), vec.constant(0.5))  # last bit = smallest subnormal
    subnormal = builder.sub(builder.bitcast(shifted, vec.int_type), vec.int_constant(0x3F000000))
    special = choose(">", 0x7F800000, vec.int_constant(0x7E00), vec.int_constant(0x7C00))
    number = choose("<", 113 << 23, subnormal, choose("<", 143 << 23, normal, special))
    return builder.trunc(builder.or_(number, sign), _kind(vec, I16))


def _as_it_is(vec: Vector, value: Any) -> Any:
    return value


_FROM_MEMORY: dict[Element, Callable[[Vector, Any], Any]] = {
    F32: _as_it_is,
    BF16: _float_of_bfloat,
    F16: _float_of_half,
}
_TO_MEMORY: dict[Element, Callable[[Vector, Any], Any]] = {F32: _as_it_is, BF16: _bfloat_of, F16: _half_of}
