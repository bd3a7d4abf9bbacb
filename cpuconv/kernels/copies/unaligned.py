"""Moves between unaligned addresses: of vectors, and of partial channel groups by words of 1, 2, 4 or 8 bytes.

A word is a block of 1 to 8 bytes, or 8 bytes of a longer one. The last word of a pixel is read or written at an address
such that it ends with the pixel; for a pixel shorter than a word it overlaps the adjacent pixels.
"""

from __future__ import annotations

from typing import Any

from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.intrinsics import copy_byte, emitter
from cpuconv.kernels.emit.transpose import NARROW
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import inline


def _place(vec: Vector, tile: Any, address: Any) -> Any:
    return vec.builder.inttoptr(address, ir.IntType(8 * tile.word).as_pointer())


def _read(vec: Vector, tile: Any, address: Any) -> Any:
    value = vec.builder.load(_place(vec, tile, address))
    value.align = 1
    return value


def _write(vec: Vector, tile: Any, value: Any, address: Any) -> None:
    vec.builder.store(value, _place(vec, tile, address)).align = 1


def _bits(vec: Vector, tile: Any, bytes_: Any) -> Any:
    return vec.builder.trunc(vec.builder.mul(bytes_, I64(8)), ir.IntType(8 * tile.word))


@emitter
def copy_unaligned(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy a vector."""
    vec.store(vec.load(vec.pointer(source), align=1), vec.pointer(target), align=1)


@emitter
def copy_quad(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy 16 bytes."""
    quad = Vector(vec.builder, NARROW)
    quad.store(quad.load(quad.pointer(source), align=1), quad.pointer(target), align=1)


@emitter
def copy_word(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy `tile.word` bytes."""
    _write(vec, tile, _read(vec, tile, source), target)


@emitter
def zero_word(tile: Any, vec: Vector, target: Any) -> None:
    """Set `tile.word` bytes to zero."""
    _write(vec, tile, ir.Constant(ir.IntType(8 * tile.word), 0), target)


@emitter
def _last_of_word(tile: Any, vec: Vector, source: Any, target: Any, missing: Any) -> None:
    """Store all but the first `missing` bytes of a word, followed by zeros."""
    value = vec.builder.lshr(_read(vec, tile, source), _bits(vec, tile, missing))
    _write(vec, tile, value, target)


@emitter
def _first_of_word(tile: Any, vec: Vector, source: Any, target: Any, missing: Any) -> None:
    """Store all but the last `missing` bytes of a word, followed by zeros."""
    bits = _bits(vec, tile, missing)
    _write(vec, tile, vec.builder.lshr(vec.builder.shl(_read(vec, tile, source), bits), bits), target)


@emitter
def _across_words(tile: Any, vec: Vector, before: Any, source: Any, target: Any, missing: Any) -> None:
    """Store the last `missing` bytes of the word `before`, followed by the first bytes of `source`."""
    builder, bits = vec.builder, _bits(vec, tile, missing)
    kept = builder.sub(ir.Constant(bits.type, 8 * tile.word), bits)
    low, high = builder.lshr(_read(vec, tile, before), kept), builder.shl(_read(vec, tile, source), bits)
    _write(vec, tile, builder.or_(low, high), target)


@inline
def copy_words(tile, x, x_pixel, y, y_pixel, pixels):
    """Copy one word of each pixel."""
    for pixel in range(pixels):
        copy_word(tile, x + pixel * x_pixel, y + pixel * y_pixel)


@inline
def zero_words(tile, y, y_pixel, pixels):
    """Zero one word of each pixel."""
    for pixel in range(pixels):
        zero_word(tile, y + pixel * y_pixel)


@inline
def keep_first(tile, y, y_pixel, bytes_, pixels):
    """Zero all but the first `bytes_` bytes of a word of each pixel."""
    for pixel in range(pixels):
        _first_of_word(tile, y + pixel * y_pixel, y + pixel * y_pixel, tile.word - bytes_)


@inline
def pack_partial(tile, x, x_pixel, y, y_pixel, bytes_, alone, pixels):
    """Copy the last `bytes_` bytes of each pixel, at x, to a zero-padded word; `alone`: a pixel has no other bytes."""
    missing = tile.word - bytes_
    forward = 0
    if alone:
        forward = min((missing + x_pixel - 1) // x_pixel, pixels)  # nothing before the first pixel may be read
    for pixel in range(forward):
        _first_of_word(tile, x + pixel * x_pixel, y + pixel * y_pixel, missing)
    for pixel in range(forward, pixels):
        _last_of_word(tile, x + pixel * x_pixel - missing, y + pixel * y_pixel, missing)


@inline
def unpack_partial(tile, before, x, x_pixel, y, y_pixel, bytes_, alone, pixels):
    """Copy back: the reverse of `pack_partial`; the end of the word at `before` is rewritten."""
    missing = tile.word - bytes_
    if not alone:
        for pixel in range(pixels):
            step = pixel * x_pixel
            _across_words(tile, before + step, x + step, y + pixel * y_pixel - missing, missing)
        return
    whole = max(pixels - (missing + y_pixel - 1) // y_pixel, 0)  # nothing past the last pixel may be written
    for pixel in range(whole):
        copy_word(tile, x + pixel * x_pixel, y + pixel * y_pixel)
    for pixel in range(whole, pixels):
        for at in range(bytes_):
            copy_byte(tile, x + pixel * x_pixel + at, y + pixel * y_pixel + at)
