"""Real 2-D Fourier transforms of tiles on vectors of channels: each lane transforms its own channel.

Codelets are recursive Python functions over lists of vectors that emit straight-line code. They use radix 2 (Cooley and
Tukey, "An Algorithm for the Machine Calculation of Complex Fourier Series", 1965) down to an odd size, which is summed
directly by symmetry. With FMA, radix 2 costs as much as split radix. Each codelet is emitted once, in a loop over the
rows or the columns of the tile. Between the two passes the tile is in scratch memory.

A complex number is a pair (re, im); None represents an exact zero. A row of n reals has n/2+1 frequencies. The first
and the last of these are real: together they make one complex column, and columns are transformed in this form.

Complex multiplication uses real planes in one of two ways. For pixels X and weights W:
    `regular`  planes Xr, Xi and Wr, Wi: four multiplications, in a complex GEMM tile;
    Gauss      planes Xr+Xi, Xr, Xi and Wr, Wi−Wr, Wr+Wi: three; the result is (first − third, first + second).
The few real frequencies are planes of their own, and come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.typed import load_as_float
from cpuconv.isa.vector import I64, L2, Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.transforms.linear import combine
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

Complex = tuple[Any, Any]

REAL = 4  # real frequencies of a tile: those of its corners
GAUSS, REGULAR = 3, 4  # real multiplications per complex one
PLANES = {GAUSS: 3, REGULAR: 2}  # planes per complex number


def _sum(vec: Vector, a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else vec.add(a, b)


def _difference(vec: Vector, a: Any, b: Any) -> Any:
    if b is None:
        return a
    return vec.sub(vec.constant(-0.0) if a is None else a, b)


def _turn(vec: Vector, z: Complex, k: int, n: int) -> Complex:
    """z·exp(−2πi·k/n); cheaper for an eighth of a turn and for multiples of a quarter."""
    re, im = z
    k %= n
    if 4 * k >= n:
        return _turn(vec, (im, _difference(vec, None, re)), k * 4 - n, 4 * n)
    if k == 0:
        return z
    if re is None or im is None:
        raise ValueError("a real number is turned by quarters only")
    if 8 * k == n:
        root = vec.constant(math.sqrt(0.5))
        return vec.mul(vec.add(re, im), root), vec.mul(vec.sub(im, re), root)
    c, s = math.cos(2 * math.pi * k / n), math.sin(2 * math.pi * k / n)
    return (
        vec.fma(im, vec.constant(s), vec.mul(re, vec.constant(c))),
        vec.fma(re, vec.constant(-s), vec.mul(im, vec.constant(c))),
    )


def _wave(function: Callable[[float], float], k: int, n: int, scale: float = 1.0) -> list[float]:
    """scale·function(2π·j·k/n) for j = 1 … (n−1)/2."""
    return [scale * function(2 * math.pi * (j * k % n) / n) for j in range(1, (n + 1) // 2)]


def fourier(vec: Vector, z: Sequence[Complex]) -> list[Complex]:
    """Z[k] = sum over j of z[j]·exp(−2πi·j·k/n), n = len(z)."""
    n = len(z)
    if n == 1:
        return list(z)
    result: list[Any] = [None] * n
    if n % 2 == 0:
        half = n // 2
        for k, (even, odd) in enumerate(zip(fourier(vec, z[::2]), fourier(vec, z[1::2]), strict=True)):
            turned = _turn(vec, odd, k, n)
            result[k] = tuple(vec.add(a, b) for a, b in zip(even, turned, strict=True))
            result[k + half] = tuple(vec.sub(a, b) for a, b in zip(even, turned, strict=True))
        return result
    re, im = (fourier_of_reals(vec, part) for part in zip(*z, strict=True))
    result[0] = re[0][0], im[0][0]
    for k in range(1, n // 2 + 1):  # of re + i·im, each Hermitian
        result[k] = vec.sub(re[k][0], im[k][1]), vec.add(re[k][1], im[k][0])
        result[n - k] = vec.add(re[k][0], im[k][1]), vec.sub(im[k][0], re[k][1])
    return result


def fourier_of_reals(vec: Vector, x: Sequence[Any]) -> list[Complex]:
    """The first n//2+1 frequencies of n reals; imaginary parts that are zero are None."""
    n = len(x)
    if n % 2:
        pairs = range(1, n // 2 + 1)
        sums, differences = ([f(x[j], x[n - j]) for j in pairs] for f in (vec.add, vec.sub))
        return [(combine(vec, [1.0] * (n // 2 + 1), [x[0], *sums]), None)] + [
            (
                combine(vec, [1.0, *_wave(math.cos, k, n)], [x[0], *sums]),
                combine(vec, _wave(math.sin, k, n, -1), differences),
            )
            for k in pairs
        ]
    half = n // 2
    result: list[Any] = [None] * (half + 1)
    for k, (even, odd) in enumerate(zip(fourier_of_reals(vec, x[::2]), fourier_of_reals(vec, x[1::2]), strict=True)):
        turned = _turn(vec, odd, k, n)
        result[k] = _sum(vec, even[0], turned[0]), _sum(vec, even[1], turned[1])
        if half - k != k:
            result[half - k] = _difference(vec, even[0], turned[0]), _difference(vec, turned[1], even[1])
    return result


def reals_of_fourier(vec: Vector, z: Sequence[Complex], n: int) -> list[Any]:
    """n·x for the n reals x whose first n//2+1 frequencies are z."""
    if n == 1:
        return [z[0][0]]
    half = n // 2
    x: list[Any] = [None] * n
    if n % 2:
        re, im = [z[0][0], *(z[k][0] for k in range(1, half + 1))], [z[k][1] for k in range(1, half + 1)]
        x[0] = combine(vec, [1.0] + [2.0] * half, re)
        for j in range(1, half + 1):
            even = combine(vec, [1.0, *_wave(math.cos, j, n, 2)], re)
            odd = combine(vec, _wave(math.sin, j, n, 2), im)
            x[j], x[n - j] = vec.sub(even, odd), vec.add(even, odd)
        return x
    evens, odds = [], []
    for k in range(half // 2 + 1):
        (re, im), (other_re, other_im) = z[k], z[half - k]
        evens.append((_sum(vec, re, other_re), _difference(vec, im, other_im)))
        odd = _difference(vec, re, other_re) if half != 2 * k else None, _sum(vec, im, other_im)
        odds.append(_turn(vec, odd, -k, n))
    x[::2], x[1::2] = reals_of_fourier(vec, evens, half), reals_of_fourier(vec, odds, half)
    return x


def _inverse(vec: Vector, z: Sequence[Complex]) -> list[Complex]:
    """n times the inverse of `fourier`: the same with real and imaginary parts exchanged."""
    return [(re, im) for im, re in fourier(vec, [(im, re) for re, im in z])]


def plane_count(rows: int, cols: int, products: int) -> int:
    """Number of planes of a rows×cols tile.

    Their order: the real frequencies; the first and the last column, alternating, without the mirrored rows; the
    columns between, one after another.
    """
    return REAL + PLANES[products] * (rows * cols - REAL) // 2


class _Planes:
    """Sequential loads or stores of planes, from an address on."""

    def __init__(self, vec: Vector, address: Any, plane: Any, products: int) -> None:
        self.vec, self.address, self.plane, self.products = vec, address, plane, products

    def _next(self) -> Any:
        here = self.address
        self.address = self.vec.offset(here, self.plane)
        return here

    def store(self, value: Any) -> None:
        """Store one plane."""
        here = self._next()
        self.vec.prefetch(self.vec.offset(here, 4 * self.vec.lanes), L2, write=True)  # the next tile's
        self.vec.store(value, here, align=4 * self.vec.lanes)

    def load(self) -> Any:
        """Load one plane."""
        here = self._next()
        self.vec.prefetch(self.vec.offset(here, 4 * self.vec.lanes), L2)
        return self.vec.load(here, align=4 * self.vec.lanes)

    def put(self, re: Any, im: Any) -> None:
        """Store the planes of a complex number."""
        for value in (re, im) if self.products == REGULAR else (self.vec.add(re, im), re, im):
            self.store(value)

    def get(self) -> Complex:
        """Load a complex number from its GEMM outputs."""
        if self.products == REGULAR:
            return self.load(), self.load()
        first, second, third = self.load(), self.load(), self.load()
        return self.vec.sub(first, third), self.vec.add(first, second)


@dataclass(frozen=True)
class FftTransform:
    """A rows×cols tile, both even; the inverse gives `out_rows`×`out_cols` outputs and applies the epilogue.

    `element` (of the input, or of the output and the residual), `valid` and `zeros` are those of `WinogradTransform`.
    """

    lanes: int
    rows: int
    cols: int
    products: int  # GAUSS or REGULAR
    out_rows: int = 0
    out_cols: int = 0
    residual: bool = False
    activation: tuple[Any, ...] | None = None
    element: Element = F32
    valid: int = 0
    zeros: int = 0

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of the inverse transform."""
        return Epilogue(F32, self.element, self.residual, self.activation)

    @property
    def edges(self) -> int:
        """Planes of the first and the last column."""
        return plane_count(self.rows, 2, self.products)


class Scratch:
    """The tile between its two passes: complex numbers at (row, column), cols/2 per row."""

    def __init__(self, vec: Vector, address: Any, cols: int) -> None:
        self.vec, self.address, self.width, self.size = vec, vec.pointer(address), cols // 2, vec.size

    def _slot(self, row: Any, column: Any) -> Any:
        builder = self.vec.builder
        row, column = (I64(index) if isinstance(index, int) else index for index in (row, column))
        index = builder.add(builder.mul(row, I64(self.width)), column)
        return self.vec.offset(self.address, builder.mul(index, I64(2 * self.size)))

    def put(self, row: Any, column: Any, value: Complex) -> None:
        """(row, column) = value."""
        slot = self._slot(row, column)
        self.vec.store(value[0], slot, align=self.size)
        self.vec.store(value[1], self.vec.offset(slot, self.size), align=self.size)

    def get(self, row: Any, column: Any) -> Complex:
        """Return the value at (row, column)."""
        slot = self._slot(row, column)
        return self.vec.load(slot, align=self.size), self.vec.load(self.vec.offset(slot, self.size), align=self.size)


def _middle(tile: FftTransform, vec: Vector, base: Any, plane: Any, column: Any) -> _Planes:
    """The planes of a column between the first and the last."""
    builder = vec.builder
    step = tile.rows * PLANES[tile.products]
    first = builder.add(builder.mul(builder.sub(column, I64(1)), I64(step)), I64(tile.edges))
    return _Planes(vec, vec.offset(base, builder.mul(first, plane)), plane, tile.products)


@MicroKernel
def fft_in(
    tile: FftTransform, builder: ir.IRBuilder, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any
) -> None:
    """v + index·plane = the planes of the input tile at x.

    Complex frequencies of the edge columns are doubled; the weights compensate for it.

    Parameters
    ----------
    x, v, scratch
        Addresses of the tile, of the first plane, and of the worker's scratch memory.
    line, pixel, plane
        Byte strides: of the tile's rows, of its pixels, and of planes.
    """
    vec = Vector(builder, tile.lanes)
    rows, half = tile.rows, tile.cols // 2
    x, v, space = vec.pointer(x), vec.pointer(v), Scratch(vec, scratch, tile.cols)

    def transform_row(row: ir.Value) -> None:
        start = vec.offset(x, builder.mul(line, row))
        places = [vec.offset(start, builder.mul(pixel, I64(j))) for j in range(tile.cols)]
        values = [load_as_float(vec, tile.element, place) for place in places]
        found = fourier_of_reals(vec, values)
        found[0] = found[0][0], found[half][0]
        for column in range(half):
            space.put(row, column, found[column])

    def transform_column(column: ir.Value) -> None:
        planes = _middle(tile, vec, v, plane, column)
        for value in fourier(vec, [space.get(row, column) for row in range(rows)]):
            planes.put(*value)

    loop(builder, 0, rows, transform_row)
    loop(builder, 1, half, transform_column)
    edges = _Planes(vec, v, plane, tile.products)
    found = fourier(vec, [space.get(row, 0) for row in range(rows)])
    for value in (*found[0], *found[rows // 2]):
        edges.store(value)
    for u in range(1, rows // 2):
        (re, im), (mirror_re, mirror_im) = found[u], found[-u]
        edges.put(vec.add(re, mirror_re), vec.sub(im, mirror_im))
        edges.put(vec.add(im, mirror_im), vec.sub(mirror_re, re))


@MicroKernel
def fft_out(
    tile: FftTransform,
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
    """y[i][j] = epilogue(rows·cols times the inverse transform of the GEMM outputs at m + index·plane).

    Parameters
    ----------
    m, y, bias, scratch
        Addresses of the first plane, of the output tile, of the bias, and of the worker's scratch memory.
    plane, line, pixel
        Byte strides: of planes, of output rows, and of pixels.
    residual
        Distance in bytes from y to the residual.
    """
    vec = Vector(builder, tile.lanes)
    rows, half = tile.rows, tile.cols // 2
    m, y, space = vec.pointer(m), vec.pointer(y), Scratch(vec, scratch, tile.cols)
    epilogue_rows = tile.epilogue.load(vec, vec.pointer(bias))

    def put_column(column: Any, values: Sequence[Complex]) -> None:
        for row, value in enumerate(_inverse(vec, values)[: tile.out_rows]):
            space.put(row, column, value)

    def transform_column(column: ir.Value) -> None:
        planes = _middle(tile, vec, m, plane, column)
        put_column(column, [planes.get() for _ in range(rows)])

    def transform_row(row: ir.Value) -> None:
        edges, *values = (space.get(row, column) for column in range(half))
        values = [(edges[0], None), *values, (edges[1], None)]
        start = vec.offset(y, builder.mul(line, row))
        for j, value in enumerate(reals_of_fourier(vec, values, tile.cols)[: tile.out_cols]):
            target = vec.offset(start, builder.mul(pixel, I64(j)))
            tile.epilogue.store(vec, value, epilogue_rows, target, residual, valid=tile.valid, zeros=tile.zeros)

    loop(builder, 1, half, transform_column)
    edges = _Planes(vec, m, plane, tile.products)
    packed: list[Any] = [None] * rows
    for u in (0, rows // 2):
        packed[u] = edges.load(), edges.load()
    for u in range(1, rows // 2):
        (re, im), (last_re, last_im) = edges.get(), edges.get()
        packed[u] = vec.sub(re, last_im), vec.add(im, last_re)
        packed[-u] = vec.add(re, last_im), vec.sub(last_re, im)
    put_column(0, packed)
    loop(builder, 0, tile.out_rows, transform_row)
