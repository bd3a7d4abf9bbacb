"""Pixels with few channels, padded to whole 32-bit groups, from planes or from contiguous pixels."""

from __future__ import annotations

from typing import Any

from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.runtime.code.llvm import ir


def _elements(tile: Any, count: int) -> Any:
    return ir.VectorType(ir.IntType(8 * tile.bytes), count)


def _load(vec: Vector, kind: Any, address: Any) -> Any:
    value = vec.builder.load(vec.builder.bitcast(address, kind.as_pointer()))
    value.align = 1
    return value


def _store(vec: Vector, value: Any, address: Any) -> None:
    vec.builder.store(value, vec.builder.bitcast(address, value.type.as_pointer())).align = 1


def _shuffled(vec: Vector, a: Any, b: Any, places: list[int]) -> Any:
    return vec.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(places)), places))


@emitter
def zip_planes(tile: Any, vec: Vector, source: Any, step: Any, target: Any) -> None:
    """target[i][c] = element i of the plane at source + c·step, for i < lanes and c < channels; others are zero."""
    lanes, start = tile.lanes, vec.pointer(source)
    kind = _elements(tile, lanes)
    planes = [_load(vec, kind, vec.offset(start, vec.builder.mul(step, I64(c)))) for c in range(tile.channels)]
    full = 1 << (tile.pixel - 1).bit_length()
    planes += [ir.Constant(kind, None)] * (full - tile.channels)
    while len(planes) > 1:  # elements of adjacent planes are interleaved
        count = planes[0].type.count
        size = count // lanes
        order = [at * size + i + count * side for at in range(lanes) for side in (0, 1) for i in range(size)]
        planes = [_shuffled(vec, a, b, order) for a, b in zip(planes[::2], planes[1::2], strict=True)]
    pixels = planes[0]
    if full > tile.pixel:
        kept = [pixel * full + c for pixel in range(lanes) for c in range(tile.pixel)]
        pixels = _shuffled(vec, pixels, pixels, kept)
    _store(vec, pixels, vec.pointer(target))


@emitter
def spread_pixels(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """target[i][c] = element c of pixel i, with `given` elements, for i < lanes and c < channels; others are zero."""
    kind = _elements(tile, tile.lanes * tile.given)
    nothing = kind.count
    order = [
        pixel * tile.given + c if c < tile.channels else nothing
        for pixel in range(tile.lanes)
        for c in range(tile.pixel)
    ]
    value = _shuffled(vec, _load(vec, kind, vec.pointer(source)), ir.Constant(kind, None), order)
    _store(vec, value, vec.pointer(target))


@emitter
def copy_kept(tile: Any, vec: Vector, source: Any, target: Any) -> None:
    """Copy `run` groups, followed by zeros up to `piece` groups and to whole vectors."""
    start, end = vec.pointer(source), vec.pointer(target)
    for first in range(0, tile.piece, tile.lanes):
        kept = max(0, min(tile.lanes, tile.run - first))
        value = vec.load(vec.offset(start, 4 * first)) if kept else vec.constant(0.0)
        if 0 < kept < tile.lanes:
            value = vec.keep_lanes(value, kept)
        vec.store(value, vec.offset(end, 4 * first))
