"""Transforms of Strassen's algorithm in Winograd's form, on 2x2 tiles: pairs of pixels and of channel blocks.

With x = (A11 A12; A21 A22) and w = (B11 B12; B21 B22), let S1 = A21 + A22, S2 = S1 − A11, T1 = B12 − B11 and
T2 = B22 − T1. The seven products are A11·B11, A12·B21, (A12 − S2)·B22, A22·(T2 − B21), S1·T1, S2·T2 and
(A11 − A21)·(B22 − B12).
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import I64, L2, Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.double import Double
from cpuconv.kernels.emit.loop import loop
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

PRODUCTS = 7
ADDITIONS = 4, 7  # of vectors per tile: before the products, and after them


@dataclass(frozen=True)
class StrassenTransform:
    """A transform of activations: its layout, and the epilogue of the inverse transform.

    Attributes
    ----------
    blocked : bool
        Rows of a tile are channel blocks, and columns pixels; else rows are pixels.
    """

    lanes: int
    blocked: bool
    residual: bool = False
    activation: tuple[Any, ...] | None = None

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of the inverse transform."""
        return Epilogue(F32, F32, self.residual, self.activation)


@dataclass(frozen=True)
class StrassenWeights:
    """The transform of weights."""

    lanes: int

    scratch = 0  # bytes


def _places(vec: Vector, tile: StrassenTransform, first: Any, line: Any, pixel: Any) -> list[Any]:
    """Addresses of the tile's vectors: (pixel 0, block 0), (0, 1), (1, 0), (1, 1)."""
    block, row = (line, pixel) if tile.blocked else (pixel, line)
    return [first, vec.offset(first, block), vec.offset(first, row), vec.offset(vec.offset(first, row), block)]


@MicroKernel
def strassen_in(
    tile: StrassenTransform, builder: ir.IRBuilder, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any
) -> None:
    """v + i·plane = the left factor of product i, for the tile at x.

    The parameters are those of `transforms.tiled.forward`.
    """
    vec = Vector(builder, tile.lanes)
    x, v = vec.pointer(x), vec.pointer(v)
    a11, a12, a21, a22 = (vec.load(place) for place in _places(vec, tile, x, line, pixel))
    s1 = vec.add(a21, a22)
    s2 = vec.sub(s1, a11)
    factors = a11, a12, vec.sub(a12, s2), a22, s1, s2, vec.sub(a11, a21)
    for i, value in enumerate(factors):
        vec.store(value, vec.offset(v, builder.mul(plane, I64(i))), align=4 * vec.lanes)


@MicroKernel
def strassen_out(
    tile: StrassenTransform,
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
    """y[i][j] = epilogue(sums of the products at m + i·plane).

    The parameters are those of `transforms.tiled.backward`; the biases of both blocks are adjacent.
    """
    vec = Vector(builder, tile.lanes)
    m, y = vec.pointer(m), vec.pointer(y)
    products = []
    for i in range(PRODUCTS):
        place = vec.offset(m, builder.mul(plane, I64(i)))
        vec.prefetch(vec.offset(place, 4 * vec.lanes))  # the next tile's
        products.append(vec.load(place, align=4 * vec.lanes))
    p1, p2, p3, p4, p5, p6, p7 = products
    u2 = vec.add(p1, p6)
    u3, u4 = vec.add(u2, p7), vec.add(u2, p5)
    sums = vec.add(p1, p2), vec.add(u4, p3), vec.sub(u3, p4), vec.add(u3, p5)
    rows = [tile.epilogue.load(vec, vec.pointer(bias), number) for number in range(2)]
    for i, (value, target) in enumerate(zip(sums, _places(vec, tile, y, line, pixel), strict=True)):
        tile.epilogue.store(vec, value, rows[i % 2], target, residual)


@MicroKernel
def strassen_weights(
    tile: StrassenWeights,
    builder: ir.IRBuilder,
    taps: Any,
    channels: Any,
    target: Any,
    plane: Any,
    pairs: Any,
    row: Any,
    scratch: Any,
) -> None:
    """target + i·plane = the right factor of product i, in float64, for each of `channels` (>= 1).

    The parameters are those of `packing.pack.transform`; taps are [block of K][block of C].
    """
    vec = Double(builder, tile.lanes)
    taps, target = vec.pointer(taps), vec.pointer(target)

    def transform(channel: Any) -> None:
        first = vec.offset(taps, builder.mul(channel, I64(4 * vec.floats.size)))
        there = vec.offset(target, builder.mul(channel, row))
        b11, b21, b12, b22 = (vec.widen(vec.offset(first, vec.floats.size * i)) for i in range(4))
        t1 = vec.sub(b12, b11)
        t2 = vec.sub(b22, t1)
        for i, value in enumerate((b11, b21, b22, vec.sub(t2, b21), t1, t2, vec.sub(b22, b12))):
            place = vec.offset(there, builder.mul(plane, I64(i)))
            vec.prefetch(vec.offset(place, row), L2, write=True)  # the next channel's
            vec.narrow(value, place)

    loop(builder, 0, channels, transform)
