"""Epilogues and stores of a GEMM tile: to channel blocks, or to planes."""

from __future__ import annotations

from typing import Any

from cpuconv.elements import Element
from cpuconv.isa.typed import load_as_float, store_float, store_int
from cpuconv.isa.vector import I64, L2, Vector
from cpuconv.kernels.elementwise.float_epilogue import emit_float_epilogue
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.products import requantize_quads
from cpuconv.kernels.products.gemm_tile import GemmTile, Memory
from cpuconv.kernels.products.requantize_quads import QUAD
from cpuconv.runtime.code.llvm import ir


def store_tile(tile: GemmTile, vec: Vector, memory: Memory, sums: list[Any], y: Any) -> None:
    """Apply the epilogue pixel by pixel and vector by vector, and store to channel blocks from `y` on.

    Vector j of sums is part j % n of a pixel in block j // n, with n = `tile.vectors_per_pixel`; `tile.zeros` vectors
    of zeros follow.
    """
    builder, epilogue = vec.builder, tile.epilogue
    if tile.has_epilogue and requantize_quads.able(vec, epilogue):
        _store_int8(tile, vec, memory, sums, y)
        return
    size = vec.lanes * tile.y.bytes
    bias, apart = vec.pointer(memory.bias), vec.size * len(epilogue.rows)
    # rows that are loaded early; more than one per vector would take the registers of sums
    early = tile.used if tile.has_epilogue and len(epilogue.rows) == 1 else 0
    loaded = [_rows(tile, vec, vec.offset(bias, apart * j)) for j in range(early)]
    for j in range(tile.used + tile.zeros):
        if tile.has_epilogue and early <= j < tile.used:
            loaded.append(_rows(tile, vec, vec.offset(bias, apart * j)))
        block, part = divmod(j, tile.vectors_per_pixel)
        for row in range(tile.rows):
            place: ir.Value = builder.add(builder.mul(memory.yvec, I64(block)), builder.mul(memory.yrow, I64(row)))
            for position, (pixel_row, col) in enumerate(tile.pixels):
                if pixel_row != row:
                    continue
                target = vec.offset(y, builder.add(place, I64(4 * tile.ys * col + part * size)))
                value = None
                if j < tile.used:
                    value = sums[position * tile.used + j]
                    if tile.has_epilogue:
                        extra = None
                        if tile.residual:
                            extra = load_as_float(vec, tile.y, vec.offset(target, memory.residual))
                        value = epilogue.emit(vec, value, loaded[j], extra)
                store_vector(vec, tile.y, value, target, tile.valid if j == tile.used - 1 else 0)


def _rows(tile: GemmTile, vec: Vector, address: Any) -> dict[str, Any]:
    """Load the epilogue's rows of a vector of sums; integer sums started from their bias."""
    rows = tile.epilogue.load(vec, address)
    return rows | {"bias": vec.int_constant(0)} if tile.epilogue.sum.integer else rows


def _store_int8(tile: GemmTile, vec: Vector, memory: Memory, sums: list[Any], y: Any) -> None:
    """`store_tile` for int8: four vectors at a time, of one, two or four pixels; one store per pixel."""
    builder, used = vec.builder, tile.used
    width = next(count for count in (1, 2, QUAD) if count >= used)  # vectors per pixel among the four
    order = [min(at % width, used - 1) for at in range(QUAD)]
    quads = requantize_quads.RequantizeQuads(vec, tile.epilogue, vec.pointer(memory.bias), used, order)

    def masked(value: Any, at: int) -> Any:
        if tile.valid and at % width == used - 1:
            return builder.select(vec.first_lanes_mask(tile.valid), value, vec.int_constant(0))
        return value

    def residual(target: Any) -> Any:
        return load_as_float(vec, tile.y, vec.offset(target, memory.residual)) if tile.residual else None

    at_once = QUAD // width
    for start in range(0, len(tile.pixels), at_once):
        pixels = tile.pixels[start : start + at_once]
        places = [builder.add(builder.mul(memory.yrow, I64(row)), I64(4 * tile.ys * col)) for row, col in pixels]
        targets = [vec.offset(y, place) for place in places]
        totals: list[Any] = [None] * QUAD
        residuals: list[Any] = [None] * QUAD
        for at, target in enumerate(targets):
            for j in range(used):
                totals[at * width + j] = sums[(start + at) * used + j]
                residuals[at * width + j] = residual(vec.offset(target, j * vec.lanes))
        narrow = quads.narrow(totals, residuals, masked)
        nothing, whole = ir.Constant(narrow.type, None), narrow.type.count
        for at, target in enumerate(targets):
            kept, stored = used * vec.lanes, (used + tile.zeros) * vec.lanes
            value = vec.shuffle(
                narrow, nothing, [at * width * vec.lanes + i if i < kept else whole for i in range(stored)]
            )
            builder.store(value, builder.bitcast(target, value.type.as_pointer())).align = 1


def store_vector(vec: Vector, y: Element, value: Any, target: Any, valid: int = 0) -> None:
    """Store a vector of outputs (None: zeros); lanes from `valid` on are zeroed (0: none)."""
    integer = y.integer
    zero = vec.int_constant(0) if integer else vec.constant(0.0)
    if value is None:
        value = zero
    elif valid:
        value = vec.builder.select(vec.first_lanes_mask(valid), value, zero)
    if integer:
        store_int(vec, y, value, target, fits=True)
    else:
        store_float(vec, y, value, target)


def store_with_zeros(vec: Vector, y: Element, value: Any, target: Any, valid: int, zeros: int) -> None:
    """`store_vector`, followed by `zeros` vectors of zeros."""
    store_vector(vec, y, value, target, valid)
    for part in range(1, zeros + 1):
        store_vector(vec, y, None, vec.offset(target, y.bytes * vec.lanes * part))


def store_planes(tile: GemmTile, vec: Vector, memory: Memory, sums: list[Any], y: Any) -> None:
    """Apply the epilogue of a planar tile and store to planes from `y` on: vectors of pixels, then loose pixels."""
    builder, yrow, yvec, residual = vec.builder, memory.yrow, memory.yvec, memory.residual
    bias = vec.pointer(memory.bias)
    for col in range(tile.cols):
        line = vec.offset(y, builder.mul(yrow, I64(col)))
        for j in range(tile.v):
            target = vec.offset(line, builder.mul(yvec, I64(j)))
            value = sums[col * tile.v + j]
            masked = tile.masked and j == tile.v - 1
            mask = first_lanes(vec, memory.valid) if masked else vec.first_lanes_mask(vec.lanes)
            if tile.has_epilogue:
                extra = vec.load_masked(vec.offset(target, residual), mask) if tile.residual else None
                value = emit_float_epilogue(
                    vec, value, vec.broadcast(vec.offset(bias, 4 * col)), extra, tile.activation
                )
            vec.store_masked(value, target, mask)
            vec.prefetch(vec.offset(target, 4 * vec.lanes * tile.v), L2, write=True)  # for the next panel
    for i in range(tile.loose):
        first = vec.offset(y, builder.add(builder.mul(yvec, I64(tile.v)), I64(4 * i)))
        places = [vec.offset(first, builder.mul(yrow, I64(col))) for col in range(tile.cols)]
        value = sums[tile.v * tile.cols + i]
        if tile.has_epilogue:
            extra = vec.gather([vec.offset(place, residual) for place in places]) if tile.residual else None
            value = emit_float_epilogue(
                vec, value, vec.load_masked(bias, vec.first_lanes_mask(tile.cols)), extra, tile.activation
            )
        vec.scatter(value, places)
