"""Moves of one vector that are more than a copy: masked lanes, blocks narrower than a vector, every other float."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.transpose import first_lanes, join, keep_first, load_present, store_present


@emitter
def copy_valid(tile: Any, vec: Vector, source: Any, target: Any, valid: Any) -> None:
    """Copy the first `valid` floats of `lanes`, and zeros for the others; no others are read."""
    vec.store(vec.load_first(vec.pointer(source), first_lanes(vec, valid)), vec.pointer(target))


@emitter
def store_valid(tile: Any, vec: Vector, source: Any, target: Any, valid: Any) -> None:
    """Copy the first `valid` floats of `lanes`; no others are written."""
    vec.store_first(vec.load(vec.pointer(source)), vec.pointer(target), first_lanes(vec, valid))


@emitter
def copy_alternate(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy every other float: `lanes` of 2·`lanes`, all of which are read."""
    source = vec.pointer(source)
    low, high = vec.load(source), vec.load(vec.offset(source, 4 * vec.lanes))
    vec.store(vec.shuffle(low, high, range(0, 2 * vec.lanes, 2)), vec.pointer(target))


@emitter
def copy_every(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy each `tile.step`-th float: `lanes` of step·`lanes`, all of which are read."""
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
    """Blocks of `tile.piece` floats, `step` bytes apart, side by side; lanes from `valid` (>= 1) on zero."""
    builder = vec.builder
    piece = Vector(builder, tile.piece)
    present = builder.sdiv(builder.add(valid, _word(tile.piece - 1)), _word(tile.piece))
    pieces = load_present(piece, vec.pointer(source), step, vec.lanes // tile.piece, present)
    vec.store(keep_first(vec, join(vec, pieces), valid), vec.pointer(target))


@emitter
def scatter_blocks(tile: Any, vec: Vector, source: Any, target: Any, step: Any, valid: Any) -> None:
    """The reverse: the blocks that hold the first `valid` (>= 1) lanes, whole, `step` bytes apart."""
    builder = vec.builder
    piece = Vector(builder, tile.piece)
    present = builder.sdiv(builder.add(valid, _word(tile.piece - 1)), _word(tile.piece))
    value = vec.load(vec.pointer(source))
    pieces = [vec.shuffle(value, value, range(first, first + tile.piece)) for first in range(0, vec.lanes, tile.piece)]
    store_present(piece, pieces, vec.pointer(target), step, present)


def _word(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)
