"""Winograd's transforms as straight-line code on vectors of channels: M·tile·Mᵀ, columns first, then rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from cpuconv.isa.vector import I64, Vector
from cpuconv.micro.epilogue import finish
from cpuconv.micro.linear import Matrix, apply
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class WinogradTransform:
    """The matrix of one transform, and the epilogue of the inverse one."""

    lanes: int
    matrix: Matrix
    residual: bool = False
    activation: tuple[Any, ...] | None = None


def _two_sided(tile: WinogradTransform, vec: Vector, load: Any, store: Any) -> None:
    """store(i, j, (M·tile·Mᵀ)[i, j]) for the tile given by load(i, j)."""
    rows, columns = len(tile.matrix), len(tile.matrix[0])
    builder = vec.builder
    with builder.goto_entry_block():
        space = builder.alloca(vec.type, size=rows * columns)
        space.align = 4 * vec.lanes

    def slot(i: int, j: int) -> ir.Value:
        return builder.gep(space, [I64(i * columns + j)])

    for j in range(columns):
        for i, value in enumerate(apply(vec, tile.matrix, [load(i, j) for i in range(columns)])):
            builder.store(value, slot(i, j)).align = 4 * vec.lanes
    for i in range(rows):
        values = [builder.load(slot(i, j)) for j in range(columns)]
        for value in values:
            value.align = 4 * vec.lanes
        for j, value in enumerate(apply(vec, tile.matrix, values)):
            store(i, j, value)


@MicroKernel
def winograd_in(
    tile: WinogradTransform, builder: ir.IRBuilder, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any
) -> None:
    """v + (i·a + j)·plane = (Bᵀ·tile·B)[i, j] for the a×a input tile at x; byte strides."""
    vec, size = Vector(builder, tile.lanes), len(tile.matrix)
    x, v = vec.pointer(x), vec.pointer(v)

    def place(i: int, j: int) -> Any:
        return vec.offset(x, builder.add(builder.mul(line, I64(i)), builder.mul(pixel, I64(j))))

    def load(i: int, j: int) -> Any:
        vec.prefetch(place(i, j + size - 2))  # the tile to the right: tiles overlap by two columns or more
        return vec.load(place(i, j))

    def store(i: int, j: int, value: Any) -> None:
        vec.store(value, vec.offset(v, builder.mul(plane, I64(i * size + j))), align=4 * vec.lanes)

    _two_sided(tile, vec, load, store)


@MicroKernel
def winograd_out(
    tile: WinogradTransform,
    builder: ir.IRBuilder,
    m: Any,
    plane: Any,
    y: Any,
    line: Any,
    pixel: Any,
    bias: Any,
    residual: Any,
    scratch: Any,
) -> None:
    """y[i][j] = epilogue((Aᵀ·products·A)[i, j]) for the products at m + (i·a + j)·plane; byte strides.

    `residual` is the distance from y to the residual.
    """
    vec, size = Vector(builder, tile.lanes), len(tile.matrix[0])
    m, y = vec.pointer(m), vec.pointer(y)
    bias = vec.load(vec.pointer(bias))

    def load(i: int, j: int) -> Any:
        product = vec.offset(m, builder.mul(plane, I64(i * size + j)))
        vec.prefetch(vec.offset(product, 4 * vec.lanes))  # the next tile's
        return vec.load(product, align=4 * vec.lanes)

    def store(i: int, j: int, value: Any) -> None:
        target = vec.offset(y, builder.add(builder.mul(line, I64(i)), builder.mul(pixel, I64(j))))
        vec.prefetch(vec.offset(target, builder.mul(pixel, I64(len(tile.matrix)))), write=True)  # the tile to the right
        extra = vec.load(vec.offset(target, residual)) if tile.residual else None
        vec.store(finish(vec, value, bias, extra, tile.activation), target)

    _two_sided(tile, vec, load, store)
