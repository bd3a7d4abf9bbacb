"""Winograd transforms of integers modulo powers of two: int8 to int16, and accumulators back to exact sums.

A transformed tile fits int16, so intermediate sums may wrap modulo 2^16. GEMMs accumulate modulo 2^32. The inverse
gives odd·2^shift times each sum modulo 2^32. It is multiplied by the inverse of the odd factor, taken as a signed
number, and shifted. The result is exact where the sum is less than 2^(31 - shift) in magnitude.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import U8, Element
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.transforms.linear import Matrix
from cpuconv.kernels.transforms.winograd import two_sided
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

BYTES = 8  # bits of an input element
HALF, WORD = 16, 32  # bits of transformed numbers, and of sums


@dataclass(frozen=True)
class IntegerTransform:
    """Transform of int8 or uint8: factors of the matrices for columns (`down`) and rows (`across`), first one first."""

    lanes: int
    down: tuple[Matrix, ...]
    across: tuple[Matrix, ...]
    x: Element


@dataclass(frozen=True)
class IntegerInverse:
    """Inverse transform and epilogue.

    Attributes
    ----------
    odd, shift : int
        Factor odd·2**shift by which the matrices multiply sums.
    valid : int
        Lanes that are channels; the others are stored as zero; 0: all.
    zeros : int
        Vectors of zeros stored after the output vector of each pixel.
    """

    lanes: int
    down: Matrix
    across: Matrix
    odd: int
    shift: int
    epilogue: Epilogue
    valid: int = 0
    zeros: int = 0


class Integers(Vector):
    """`Vector` of `bits`-bit integers: arithmetic is modulo 2**bits."""

    def __init__(self, builder: ir.IRBuilder, lanes: int, bits: int) -> None:
        super().__init__(builder, lanes)
        self.size = bits // BYTES * lanes
        self.type = ir.VectorType(ir.IntType(bits), lanes) if lanes > 1 else ir.IntType(bits)

    def constant(self, value: float) -> Any:
        """Every lane = value, an integer."""
        return ir.Constant(self.type, [int(value)] * self.lanes if self.lanes > 1 else int(value))

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return self.builder.add(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """a − b."""
        return self.builder.sub(a, b)

    def mul(self, a: Any, b: Any) -> Any:
        """a·b."""
        return self.builder.mul(a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c."""
        return self.builder.add(self.builder.mul(a, b), c)

    def widened(self, element: Element, address: Any) -> Any:
        """lanes[i] = the int8 or uint8 at address + i, widened."""
        bytes_: Any = ir.VectorType(ir.IntType(BYTES), self.lanes)
        value = self.builder.load(self.builder.bitcast(address, bytes_.as_pointer()))
        value.align = 1
        return (self.builder.zext if element == U8 else self.builder.sext)(value, self.type)


@MicroKernel
def winograd_integer_in(
    tile: IntegerTransform, builder: ir.IRBuilder, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any
) -> None:
    """v + (i·a + j)·plane = (Bᵀ·tile·B)[i, j], with a columns, for twice as many channels as there are lanes.

    The parameters are those of `transforms.tiled.forward`.
    """
    vec, size = Integers(builder, 2 * tile.lanes, HALF), len(tile.across[-1])
    x, v = vec.pointer(x), vec.pointer(v)

    def place(i: int, j: int) -> Any:
        return vec.offset(x, builder.add(builder.mul(line, I64(i)), builder.mul(pixel, I64(j))))

    def load(i: int, j: int) -> Any:
        vec.prefetch(place(i, j + size - 2))  # the tile to the right: tiles overlap by two columns or more
        return vec.widened(tile.x, place(i, j))

    def store(i: int, j: int, value: Any) -> None:
        vec.store(value, vec.offset(v, builder.mul(plane, I64(i * size + j))), align=vec.size)

    two_sided(vec, tile.down, tile.across, load, store)


@MicroKernel
def winograd_integer_out(
    tile: IntegerInverse,
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
    """y[i][j] = epilogue((Aᵀ·M·A)[i, j] / (odd·2**shift)), where the GEMM outputs M[i, j] are at m + (i·a + j)·plane.

    The parameters are those of `transforms.tiled.backward`; `bias` is the address of the epilogue's rows.
    """
    vec, floats, epilogue = Integers(builder, tile.lanes, WORD), Vector(builder, tile.lanes), tile.epilogue
    size = len(tile.across[0])
    m, y = vec.pointer(m), vec.pointer(y)
    rows = epilogue.load(floats, vec.pointer(bias))
    inverse, shift = vec.constant(_signed(pow(tile.odd, -1, 1 << WORD))), vec.constant(tile.shift)

    def load(i: int, j: int) -> Any:
        product = vec.offset(m, builder.mul(plane, I64(i * size + j)))
        vec.prefetch(vec.offset(product, vec.size))  # the next tile's
        return vec.load(product, align=vec.size)

    def store(i: int, j: int, value: Any) -> None:
        target = vec.offset(y, builder.add(builder.mul(line, I64(i)), builder.mul(pixel, I64(j))))
        vec.prefetch(vec.offset(target, builder.mul(pixel, I64(len(tile.across)))), write=True)  # the tile to the right
        total = builder.ashr(builder.mul(value, inverse), shift)
        epilogue.store(floats, total, rows, target, residual, valid=tile.valid, zeros=tile.zeros)

    two_sided(vec, [tile.down], [tile.across], load, store)


def _signed(word: int) -> int:
    """Convert an unsigned 32-bit number to the signed one that is equal modulo 2³²."""
    return word - (1 << WORD) if word >> (WORD - 1) else word
