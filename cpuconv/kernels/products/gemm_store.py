"""Epilogues and stores of a GEMM tile: to channel blocks, or to planes."""

from __future__ import annotations

import itertools
from typing import Any

from cpuconv.elements import F16, F32
from cpuconv.isa.vector import I64, L2, Vector
from cpuconv.kernels.elementwise.epilogue import store_first, store_vector
from cpuconv.kernels.elementwise.halves import Half, store_with_epilogue
from cpuconv.kernels.elementwise.requantize import RequantizeQuads
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.products.gemm_tile import GemmTile, Memory
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir


def store_tile(tile: GemmTile, vec: Vector, memory: Memory, sums: list[Any], y: Any) -> None:
    """Apply the epilogue pixel by pixel and vector by vector, and store to channel blocks from `y` on.

    Vector j of sums is part j % n of a pixel in block j // n, with n = `tile.vectors_per_pixel`; `tile.zeros` vectors
    of zeros follow.
    """
    builder, epilogue = vec.builder, tile.epilogue
    bias, residual = vec.pointer(memory.bias), memory.residual
    if tile.has_epilogue and RequantizeQuads.able(vec, epilogue):
        quads = RequantizeQuads(vec, epilogue, bias, tile.used, valid=tile.valid, zeros=tile.zeros)
        for start in range(0, len(tile.pixels), quads.at_once):
            pixels = tile.pixels[start : start + quads.at_once]
            places = [builder.add(builder.mul(memory.yrow, I64(row)), I64(4 * tile.ys * col)) for row, col in pixels]
            each = [sums[at * tile.used :][: tile.used] for at in range(start, start + len(pixels))]
            quads.store(each, [vec.offset(y, place) for place in places], residual)
        return
    if BY_NAME[tile.product].half_sums and tile.y == F16:
        _store_halves(tile, vec, memory, sums, y)
        return
    size = vec.lanes * tile.y.bytes
    # rows that are loaded early; more than one per vector would take the registers of sums
    early = tile.used if tile.has_epilogue and len(epilogue.rows) == 1 else 0
    loaded = [epilogue.load(vec, bias, j, started=True) for j in range(early)]
    for j in range(tile.used + tile.zeros):
        if tile.has_epilogue and early <= j < tile.used:
            loaded.append(epilogue.load(vec, bias, j, started=True))
        block, part = divmod(j, tile.vectors_per_pixel)
        valid = tile.valid if j == tile.used - 1 else 0
        for row in range(tile.rows):
            place: ir.Value = builder.add(builder.mul(memory.yvec, I64(block)), builder.mul(memory.yrow, I64(row)))
            for position, (pixel_row, col) in enumerate(tile.pixels):
                if pixel_row != row:
                    continue
                target = vec.offset(y, builder.add(place, I64(4 * tile.ys * col + part * size)))
                total = sums[position * tile.used + j] if j < tile.used else None
                if tile.has_epilogue and total is not None:
                    epilogue.store(vec, total, loaded[j], target, residual, valid=valid)
                else:
                    store_vector(vec, tile.y, total, target, valid)


def _store_halves(tile: GemmTile, vec: Vector, memory: Memory, sums: list[Any], y: Any) -> None:
    """`store_tile` of float16 sums: both vectors of a pixel of a block become one of float16, in which the residual is
    added and the activation computed. The last vector may be alone.
    """
    builder, each, bias = vec.builder, tile.vectors_per_pixel, vec.pointer(memory.bias)

    def place(j: int, row: int, col: int) -> Any:
        block, part = divmod(j, each)
        start = builder.add(builder.mul(memory.yvec, I64(block)), builder.mul(memory.yrow, I64(row)))
        return vec.offset(y, builder.add(start, I64(4 * tile.ys * col + vec.lanes * tile.y.bytes * part)))

    for first in range(0, tile.used, each):
        count = min(each, tile.used - first)
        halves, rows = Half(builder, vec.lanes * count), vec.offset(bias, vec.size * first)
        valid = vec.lanes * (count - 1) + tile.valid if tile.valid and first + count == tile.used else 0
        wide = vec if tile.in_blocks else halves
        parts = range(count) if tile.in_blocks else range(1)
        biases = [_bias(wide, vec.offset(rows, vec.size * at)) for at in parts] if tile.has_epilogue else []
        for position, pixel in enumerate(tile.pixels):
            if tile.in_blocks:
                values = sums[position * tile.used + first :][:count]
            else:
                value = sums[position * divide(tile.used, each) + first // each]
                values = [vec.shuffle(value, value, range(halves.lanes))]
            if biases:
                values = [wide.add(value, added) for value, added in zip(values, biases, strict=True)]
            value = values[0]
            if tile.in_blocks:
                value = builder.fptrunc(vec.shuffle(value, values[-1], range(halves.lanes)), halves.type)
            store_with_epilogue(halves, tile.epilogue, value, place(first, *pixel), memory.residual, valid)
    for j, pixel in itertools.product(range(tile.used, tile.used + tile.zeros), tile.pixels):
        store_vector(vec, tile.y, None, place(j, *pixel))


def _bias(vec: Vector, address: Any) -> Any:
    return vec.rounded(address) if isinstance(vec, Half) else vec.load(address)


def store_planes(tile: GemmTile, vec: Vector, memory: Memory, sums: list[Any], y: Any) -> None:
    """Apply the epilogue of a planar tile and store to planes from `y` on: vectors of pixels, then loose pixels.

    All output channels of integer sums share the rows of the epilogue at `bias`.
    """
    builder, yrow, yvec, residual = vec.builder, memory.yrow, memory.yvec, memory.residual
    bias, epilogue = vec.pointer(memory.bias), tile.epilogue
    shared = epilogue.load(vec, bias) if tile.has_epilogue and epilogue.sum.integer else None
    for col in range(tile.cols):
        line = vec.offset(y, builder.mul(yrow, I64(col)))
        for j in range(tile.used):
            target = vec.offset(line, builder.mul(yvec, I64(j)))
            value = sums[col * tile.used + j]
            masked = tile.masked and j == tile.used - 1
            mask = first_lanes(vec, memory.valid) if masked else vec.first_lanes_mask(vec.lanes)
            if tile.has_epilogue:
                extra = vec.load_masked(vec.offset(target, residual), mask) if tile.residual else None
                rows = shared or {"bias": vec.broadcast(vec.offset(bias, 4 * col))}
                value = epilogue.emit(vec, value, rows, extra)
            if tile.y == F32:
                vec.store_masked(builder.bitcast(value, vec.type), target, mask)
            else:
                store_first(vec, tile.y, value, target, tile.valid if tile.valid and j == tile.used - 1 else vec.lanes)
            if not tile.packed:
                vec.prefetch(vec.offset(target, 4 * vec.lanes * tile.v), L2, write=True)  # for the next panel
    for i in range(tile.loose):
        first = vec.offset(y, builder.add(builder.mul(yvec, I64(tile.v)), I64(4 * i)))
        places = [vec.offset(first, builder.mul(yrow, I64(col))) for col in range(tile.cols)]
        value = sums[tile.v * tile.cols + i]
        if tile.has_epilogue:
            extra = vec.gather([vec.offset(place, residual) for place in places]) if tile.residual else None
            rows = {"bias": vec.load_masked(bias, vec.first_lanes_mask(tile.cols))}
            value = epilogue.emit(vec, value, rows, extra)
        vec.scatter(value, places)
