"""Copies of one vector other than plain ones: masked lanes, blocks narrower than a vector, strided float32."""

from __future__ import annotations

from typing import Any

from cpuconv.elements import S16, U8, Element
from cpuconv.isa import current
from cpuconv.isa.typed import load_narrow, store_narrow
from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.transpose import (
    first_elements,
    first_lanes,
    join,
    keep_first,
    load_present,
    store_present,
)
from cpuconv.runtime.code.llvm import ir


def masks_elements(size: int) -> bool:
    """Whether masked loads and stores support elements of `size` bytes; otherwise they mask 32-bit groups."""
    return size == 4 or current().name == "avx512"


@emitter
def copy_valid(tile: Any, vec: Vector, source: Any, target: Any, valid: Any) -> None:
    """Copy the first `valid` elements of a vector, and zeros for the others; no others are read.

    For elements of one or two bytes, the rest of the last element's 32-bit group is read where loads mask groups.
    """
    if tile.bytes == 4:
        vec.store(vec.load_masked(vec.pointer(source), first_lanes(vec, valid)), vec.pointer(target))
    elif masks_elements(tile.bytes):
        wide, element = _elements(vec, tile.bytes)
        value = load_narrow(wide, element, vec.pointer(source), first_elements(vec, valid, tile.bytes))
        store_narrow(wide, element, value, vec.pointer(target))
    else:
        words = first_lanes(vec, _holding(vec, valid, 4 // tile.bytes))
        value = keep_first(vec, vec.load_masked(vec.pointer(source), words), valid, tile.bytes)
        vec.store(value, vec.pointer(target))


@emitter
def store_valid(tile: Any, vec: Vector, source: Any, target: Any, valid: Any) -> None:
    """Copy the first `valid` elements of a vector and no others. They must fill groups where stores mask those."""
    value = vec.load(vec.pointer(source))
    if tile.bytes < 4 and masks_elements(tile.bytes):
        wide, element = _elements(vec, tile.bytes)
        mask = first_elements(vec, valid, tile.bytes)
        kind = ir.VectorType(ir.IntType(8 * tile.bytes), wide.lanes)
        store_narrow(wide, element, vec.builder.bitcast(value, kind), vec.pointer(target), mask)
    else:
        words = valid if tile.bytes == 4 else _holding(vec, valid, 4 // tile.bytes)
        vec.store_masked(value, vec.pointer(target), first_lanes(vec, words))


@emitter
def keep_valid(tile: Any, vec: Vector, target: Any, valid: Any) -> None:
    """Set all but the first `valid` elements of the vector at `target` to zero."""
    target = vec.pointer(target)
    vec.store(keep_first(vec, vec.load(target), valid, tile.bytes), target)


def _elements(vec: Vector, size: int) -> tuple[Vector, Element]:
    """A vector type with one lane per element of `size` bytes, and the element type."""
    return Vector(vec.builder, vec.size // size), {1: U8, 2: S16}[size]


def _holding(vec: Vector, valid: Any, each: int) -> Any:
    """The number of groups, or blocks, of `each` elements that contain `valid` elements."""
    return vec.builder.sdiv(vec.builder.add(valid, _word(each - 1)), _word(each))


@emitter
def copy_alternate(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy every second float32: `lanes` out of 2·`lanes`, all of which are read."""
    source = vec.pointer(source)
    low, high = vec.load(source), vec.load(vec.offset(source, 4 * vec.lanes))
    vec.store(vec.shuffle(low, high, range(0, 2 * vec.lanes, 2)), vec.pointer(target))


@emitter
def copy_every(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy every `tile.step`-th float32: `lanes` out of step·`lanes`, all of which are read."""
    source, size = vec.pointer(source), vec.lanes
    value = vec.load(source)
    places = [tile.step * lane for lane in range(size)]
    for i in range(tile.step):
        further = vec.load(vec.offset(source, 4 * size * i)) if i else value
        mask = [place - size * i + size if place // size == i else lane for lane, place in enumerate(places)]
        value = vec.shuffle(value, further, mask)
    vec.store(value, vec.pointer(target))


@emitter
def gather_blocks(tile: Any, vec: Vector, source: Any, step: Any, valid: Any, target: Any) -> None:
    """Concatenate blocks of `tile.piece` groups, `step` bytes apart; elements from `valid` (>= 1) on are zero."""
    piece = Vector(vec.builder, tile.piece)
    present = _holding(vec, valid, 4 // tile.bytes * tile.piece)
    pieces = load_present(piece, vec.pointer(source), step, vec.lanes // tile.piece, present)
    vec.store(keep_first(vec, join(vec, pieces), valid, tile.bytes), vec.pointer(target))


@emitter
def scatter_blocks(tile: Any, vec: Vector, source: Any, target: Any, step: Any, valid: Any) -> None:
    """Undo `gather_blocks`: store the whole blocks of the first `valid` (>= 1) elements, `step` bytes apart."""
    piece = Vector(vec.builder, tile.piece)
    present = _holding(vec, valid, 4 // tile.bytes * tile.piece)
    value = vec.load(vec.pointer(source))
    pieces = [vec.shuffle(value, value, range(first, first + tile.piece)) for first in range(0, vec.lanes, tile.piece)]
    store_present(piece, pieces, vec.pointer(target), step, present)


def _word(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)
