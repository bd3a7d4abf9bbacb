"""Decorator that makes emitters callable from kernel drivers; all arguments but the tile are int64 words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import Emitted


def emitter(function: Callable[..., Any]) -> Any:
    """Make `function(tile, vec, *words)`, which emits code, callable in kernels as f(tile, *words).

    The emitter returns an i64 value, or None; then the call returns 0.
    """

    def emit(builder: Any, tile: Any, *words: Any) -> Any:
        return function(tile, Vector(builder, tile.lanes), *words)

    code = function.__code__
    functools.update_wrapper(emit, function)
    return Emitted(emit, ("tile", *code.co_varnames[2 : code.co_argcount]), takes_tile=True)


@emitter
def word(tile: Any, vec: Vector, address: Any, index: Any) -> Any:
    """The int64 at address + 8·index."""
    pointer = vec.builder.inttoptr(address, I64.as_pointer())
    return vec.builder.load(vec.builder.gep(pointer, [index]))


@emitter
def copy_vector(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy `lanes` float32."""
    vec.store(vec.load(vec.pointer(source)), vec.pointer(target))


@emitter
def copy_part(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy one of the `tile.y_vectors` equal parts of a vector."""
    part = Vector(vec.builder, vec.lanes // tile.y_vectors)
    part.store(part.load(vec.pointer(source)), vec.pointer(target))


@emitter
def copy_float(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy one float32."""
    builder = vec.builder
    value = builder.load(builder.inttoptr(source, F32.as_pointer()))
    builder.store(value, builder.inttoptr(target, F32.as_pointer()))


@emitter
def copy_element(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy one element of `tile.bytes` bytes."""
    kind = _element(tile.bytes).as_pointer()
    vec.builder.store(vec.builder.load(vec.builder.inttoptr(source, kind)), vec.builder.inttoptr(target, kind))


@emitter
def copy_byte(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy one byte."""
    kind = ir.IntType(8).as_pointer()
    vec.builder.store(vec.builder.load(vec.builder.inttoptr(source, kind)), vec.builder.inttoptr(target, kind))


@emitter
def zero_element(tile: Any, vec: Vector, target: Any) -> None:
    """Set one element of `tile.bytes` bytes to zero."""
    kind = _element(tile.bytes)
    vec.builder.store(ir.Constant(kind, None), vec.builder.inttoptr(target, kind.as_pointer()))


@emitter
def fill_element(tile: Any, vec: Vector, target: Any, word_: Any) -> None:
    """Set one element of `tile.bytes` bytes to the lowest bytes of an int64 word."""
    kind = ir.IntType(8 * tile.bytes)
    vec.builder.store(vec.builder.trunc(word_, kind), vec.builder.inttoptr(target, kind.as_pointer()))


def _element(size: int) -> Any:
    return F32 if size == 4 else ir.IntType(8 * size)


@emitter
def zero_vector(tile: Any, vec: Vector, target: Any) -> None:
    """Set `lanes` float32 to zero."""
    vec.store(vec.constant(0.0), vec.pointer(target))


@emitter
def fill_vector(tile: Any, vec: Vector, target: Any, word_: Any) -> None:
    """Set `lanes` 32-bit groups to the lower half of an int64 word."""
    builder = vec.builder
    value = vec.splat(builder.trunc(word_, I32))
    vec.store(builder.bitcast(value, vec.type), vec.pointer(target))


@emitter
def zero_float(tile: Any, vec: Vector, target: Any) -> None:
    """Set one float32 to zero."""
    vec.builder.store(F32(0.0), vec.builder.inttoptr(target, F32.as_pointer()))
