"""Winograd transforms as straight-line code on vectors of channels: M·tile·Nᵀ, columns first, then rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32, Element
from cpuconv.isa.neon import ElementConstants, load_operand
from cpuconv.isa.table import current
from cpuconv.isa.typed import load_as_float, split_to_bfloat16, store_narrow
from cpuconv.isa.vector import I64, L2, Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.elementwise.halves import Half, half_emitter, store_with_epilogue
from cpuconv.kernels.emit.double import Double
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.transforms.linear import Matrix, apply
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

_COLUMNS_AHEAD = 2  # of a tile's, on in-order cores
_MAX_IN_REGISTERS = 20  # vectors of an intermediate product that stay in registers, of 32


@dataclass(frozen=True)
class WinogradTransform:
    """Matrices of one transform, for columns (`down`) and rows (`across`), and the epilogue of the inverse transform.

    Attributes
    ----------
    element : Element
        Type of the input, or of the output and the residual.
    valid : int
        Lanes that are channels; the others are stored as zero; 0: all.
    zeros : int
        Vectors of zeros stored after the output vector of each pixel.
    parts : int
        Bfloat16 parts of each component, which are stored one after another in its place; 0: it is stored itself.
    halves : bool
        Whether it computes in float16, on twice as many lanes.
    """

    lanes: int
    down: Matrix
    across: Matrix
    residual: bool = False
    activation: tuple[Any, ...] | None = None
    element: Element = F32
    valid: int = 0
    zeros: int = 0
    parts: int = 0
    halves: bool = False

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of the inverse transform."""
        return Epilogue(F32, self.element, self.residual, self.activation)


@dataclass(frozen=True)
class WinogradWeights:
    """Matrices G of the weight transform, for columns (`down`) and rows (`across`)."""

    lanes: int
    down: Matrix
    across: Matrix

    scratch = 0  # bytes


def two_sided(
    vec: Vector,
    down: Sequence[Matrix],
    across: Sequence[Matrix],
    load: Any,
    store: Any,
    groups: Sequence[Sequence[int]] = (),
) -> None:
    """Call store(i, j, (down·tile·acrossᵀ)[i, j]) for the tile given by load(i, j).

    Parameters
    ----------
    down, across
        Factors of each matrix, in the order of application.
    groups
        Groups of rows of the result, each computed from the whole tile, which is loaded again; empty: one group.
    """
    high, wide = len(down[0][0]), len(across[0][0])
    *first, last = down
    ahead: list[list[Any]] = []  # columns for the next group, which are loaded before the last row is stored
    for rows in groups or (range(len(last)),):
        factors = [*first, tuple(last[i] for i in rows)]
        columns = []
        for j in range(wide):
            column = ahead[j] if j < len(ahead) else [load(i, j) for i in range(high)]
            columns.append(_applied(vec, factors, column))
        for at, i in enumerate(rows):
            values = _applied(vec, across, [column[at] for column in columns])
            if groups and i == rows[-1] and rows != groups[-1] and current().in_order:
                ahead = [[load(i, j) for i in range(high)] for j in range(_COLUMNS_AHEAD)]
            for j, value in enumerate(values):
                store(i, j, value)


def _row_groups(rows: int, wide: int) -> list[list[int]]:
    """Groups of rows of a transformed tile, so that each group's intermediate product stays in registers; empty: one.

    Rows of points p and -p share sums: pairs of adjacent rows, after that of point 0 if `rows` is even. Where operands
    of instructions can be in memory, nothing is gained.
    """
    if current().memory_operand or rows * wide <= _MAX_IN_REGISTERS:
        return []
    first = 1 - rows % 2
    return [*([i, i + 1] for i in range(first, rows - 1, 2)), [0, rows - 1] if first else [rows - 1]]


def _vector(tile: WinogradTransform, builder: ir.IRBuilder) -> Vector:
    """The emitter of a transform; on Arm, FMAs of float32 take its coefficients as elements of few vectors."""
    if tile.halves or current().memory_operand:
        return half_emitter(Vector(builder, tile.lanes), tile.element, tile.halves)
    return ElementConstants(builder, tile.lanes, [c for row in (*tile.down, *tile.across) for c in row])


def _component(vec: Vector, components: Any, plane: Any, number: int, columns: int) -> Any:
    """Address of a component, of `columns` in a row of the transformed tile.

    On Arm an address is the sum of two registers: those of rows and those of columns serve all components.
    """
    if current().memory_operand:
        return vec.offset(components, vec.builder.mul(plane, I64(number)))
    row, column = divmod(number, columns)
    first = vec.offset(components, vec.builder.mul(plane, I64(row * columns)))
    return vec.offset(first, vec.builder.mul(plane, I64(column)))


def _next_lines(vec: Vector, components: Any, plane: Any, step: int) -> Any:
    """Address behind a cache line of the component that a tile begins with when it prefetches every `step`-th one.

    A line has that component of `step` adjacent tiles, each of which begins with another one: so all are prefetched.
    """
    builder = vec.builder
    index = builder.and_(builder.lshr(components, I64(vec.size.bit_length() - 1)), I64(step - 1))
    first = builder.add(components, builder.mul(plane, index))
    return vec.pointer(builder.add(first, I64(vec.size * step)))


def _applied(vec: Vector, matrices: Sequence[Matrix], values: list[Any]) -> list[Any]:
    for matrix in matrices:
        values = apply(vec, matrix, values)
    return values


@MicroKernel
def winograd_in(
    tile: WinogradTransform, builder: ir.IRBuilder, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any
) -> None:
    """v + (i·a + j)·plane = (Bᵀ·tile·B)[i, j], where a is the number of columns, for the input tile at x.

    The parameters are those of `transforms.tiled.forward`.
    """
    vec, size, step = _vector(tile, builder), len(tile.across), current().prefetch_step
    x, v = vec.pointer(x), vec.pointer(v)
    ahead: set[tuple[int, int]] = set()
    starts = [vec.offset(x, builder.mul(line, I64(i))) for i in range(len(tile.down))] if current().in_order else []
    halves = [vec.opaque(vec.offset(start, vec.size // 2)) for start in starts]

    def place(i: int, j: int) -> Any:
        if starts:
            return vec.offset(starts[i], builder.mul(pixel, I64(j)))
        return vec.offset(x, builder.add(builder.mul(line, I64(i)), builder.mul(pixel, I64(j))))

    def load(i: int, j: int) -> Any:
        if j % step == 0 and (i, j) not in ahead:
            vec.prefetch(place(i, j + size - 2))  # the tile to the right: tiles overlap by two columns or more
            ahead.add((i, j))
        if tile.element == F32:
            upper = vec.offset(halves[i], builder.mul(pixel, I64(j))) if halves else None
            return load_operand(vec, place(i, j), vec.type, upper=upper)
        return load_as_float(vec, tile.element, place(i, j))

    def store(i: int, j: int, value: Any) -> None:
        first = (i * size + j) * max(1, tile.parts)
        if not tile.parts:
            vec.store(value, _component(vec, v, plane, first, size), align=vec.size)
        for part, narrow in enumerate(() if tile.halves else split_to_bfloat16(vec, value, tile.parts)):
            store_narrow(vec, BF16, narrow, vec.offset(v, builder.mul(plane, I64(first + part))))

    two_sided(vec, [tile.down], [tile.across], load, store, _row_groups(len(tile.down), size))


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
    """y[i][j] = epilogue((Aᵀ·M·A)[i, j]), where the GEMM outputs M[i, j] are at m + (i·a + j)·plane.

    The parameters are those of `transforms.tiled.backward`.
    """
    vec, size, step = _vector(tile, builder), len(tile.across[0]), current().prefetch_step
    following = _next_lines(vec, m, plane, step) if step > 1 else None
    m, y = vec.pointer(m), vec.pointer(y)
    rows = vec.rounded(vec.pointer(bias)) if isinstance(vec, Half) else tile.epilogue.load(vec, vec.pointer(bias))

    def load(i: int, j: int) -> Any:
        number = i * size + j
        product = _component(vec, m, plane, number, size)
        if following is None:
            vec.prefetch(vec.offset(product, vec.size))  # the next tile's
        elif number % step == 0:
            vec.prefetch(_component(vec, following, plane, number, size))
        return load_operand(vec, product, vec.type, vec.size)

    def store(i: int, j: int, value: Any) -> None:
        target = vec.offset(y, builder.add(builder.mul(line, I64(i)), builder.mul(pixel, I64(j))))
        if j % step == 0:  # the tile to the right
            vec.prefetch(vec.offset(target, builder.mul(pixel, I64(len(tile.across)))), write=True)
        if isinstance(vec, Half):
            store_with_epilogue(vec, tile.epilogue, vec.add(value, rows), target, residual)
        else:
            tile.epilogue.store(vec, value, rows, target, residual, valid=tile.valid, zeros=tile.zeros)

    two_sided(vec, [tile.down], [tile.across], load, store)


@MicroKernel
def winograd_weights(
    tile: WinogradWeights,
    builder: ir.IRBuilder,
    taps: Any,
    channels: Any,
    target: Any,
    plane: Any,
    pairs: Any,
    row: Any,
    scratch: Any,
) -> None:
    """target + (i·a + j)·plane = (G·taps·Gᵀ)[i, j], with a columns, in float64, for each of `channels` (>= 1).

    The parameters are those of `packing.pack.transform`.
    """
    vec, a, r, s = Double(builder, tile.lanes), len(tile.across), len(tile.down[0]), len(tile.across[0])
    taps, target = vec.pointer(taps), vec.pointer(target)

    def transform(channel: Any) -> None:
        first = vec.offset(taps, builder.mul(channel, I64(vec.floats.size * r * s)))
        there = vec.offset(target, builder.mul(channel, row))

        def load(i: int, j: int) -> Any:
            return vec.widen(vec.offset(first, vec.floats.size * (i * s + j)))

        def store(i: int, j: int, value: Any) -> None:
            place = vec.offset(there, builder.mul(plane, I64(i * a + j)))
            vec.prefetch(vec.offset(place, row), L2, write=True)  # the next channel's
            vec.narrow(value, place)

        two_sided(vec, [tile.down], [tile.across], load, store)

    loop(builder, 0, channels, transform)
