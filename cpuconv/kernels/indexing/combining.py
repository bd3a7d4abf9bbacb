"""Reductions of an element, or of a row of elements, into memory: add, mul, min and max of all types of numbers.

min and max are NaN if one number is.
"""

from __future__ import annotations

from typing import Any

from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.runtime.code.llvm import ir

_FLOATS = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_INTEGERS = {f"{sign}int{bits}": ir.IntType(bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
_OF_INTEGERS = {"add": ir.IRBuilder.add, "mul": ir.IRBuilder.mul}
_OF_FLOATS = {"add": ir.IRBuilder.fadd, "mul": ir.IRBuilder.fmul}

REDUCTIONS = ("add", "mul", "min", "max")
NUMBERS = (*_FLOATS, *_INTEGERS)
"""Names of the types that have reductions."""


@emitter
def combine_rows(tile: Any, vec: Vector, source: Any, target: Any, count: Any) -> None:
    """target[i] = the reduction `tile.put` of target[i] and source[i], for `count` elements of type `tile.kind`."""
    builder, size = vec.builder, tile.word
    lanes = vec.size // size
    source, target = vec.pointer(source), vec.pointer(target)
    whole = builder.sdiv(count, I64(lanes))

    def some(first: Any, number: int) -> None:
        at = builder.mul(first, I64(size))
        _combine(tile, builder, number, vec.offset(source, at), vec.offset(target, at))

    def vectors(index: Any, values: list[Any]) -> list[Any]:
        some(builder.mul(index, I64(lanes)), lanes)
        return values

    def single(index: Any, values: list[Any]) -> list[Any]:
        some(index, 1)
        return values

    repeat(vec, I64(0), whole, [], vectors)
    repeat(vec, builder.mul(whole, I64(lanes)), count, [], single)


@emitter
def combine_element(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """`combine_rows` of one element."""
    _combine(tile, vec.builder, 1, vec.pointer(source), vec.pointer(target))


def _combine(tile: Any, builder: ir.IRBuilder, lanes: int, source: Any, target: Any) -> None:
    scalar = (_FLOATS | _INTEGERS)[tile.kind]
    pointer = (ir.VectorType(scalar, lanes) if lanes > 1 else scalar).as_pointer()
    places = [builder.bitcast(place, pointer) for place in (target, source)]
    old, new = map(builder.load, places)
    old.align = new.align = tile.word
    number = (_OF_INTEGERS if tile.kind in _INTEGERS else _OF_FLOATS).get(tile.put)
    if number is None:
        value = builder.select(_takes_new(builder, tile, old, new), new, old)
    else:
        value = number(builder, old, new)
    builder.store(value, places[0]).align = tile.word


def _takes_new(builder: ir.IRBuilder, tile: Any, old: Any, new: Any) -> Any:
    """Whether the minimum or maximum is the new number; NaN is."""
    relation = {"min": "<", "max": ">"}[tile.put]
    if tile.kind in _INTEGERS:
        return (builder.icmp_unsigned if tile.kind[0] == "u" else builder.icmp_signed)(relation, new, old)
    return builder.or_(builder.fcmp_ordered(relation, new, old), builder.fcmp_unordered("uno", new, new))
