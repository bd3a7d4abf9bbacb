"""Real 2-D Fourier transforms of tiles on vectors of channels: each lane transforms its own channel.

Codelets are Python recursions over lists of vectors that emit straight-line code: radix 2 (Cooley and Tukey, "An
Algorithm for the Machine Calculation of Complex Fourier Series", 1965) down to an odd size, which is summed directly
by symmetry. Twiddles cost what split radix costs when a product and a sum are one FMA. Each codelet is emitted once,
in a loop over the rows or the columns of the tile; between the two, the tile lies in scratch memory.

A complex number is a pair (re, im); None stands for an exact zero. A row of n reals has n/2+1 frequencies, of which
the first and the last are real: together they make one complex column, and columns are transformed as such.

A product of complex numbers is three real ones (Gauss), each a plane of its own. For pixels X and weights W:
    Wr·(Xr+Xi), (Wi−Wr)·Xr, (Wr+Wi)·Xi; the product is (first − third, first + second).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from cpuconv.isa.vector import I64, Vector
from cpuconv.micro.epilogue import finish
from cpuconv.micro.linear import combine
from cpuconv.runtime.microkernel import MicroKernel

Complex = tuple[Any, Any]

GAUSS = 3  # real products, hence planes, of a frequency that is not real


def _sum(vec: Vector, a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else vec.add(a, b)


def _difference(vec: Vector, a: Any, b: Any) -> Any:
    if b is None:
        return a
    return vec.sub(vec.constant(-0.0) if a is None else a, b)


def _turn(vec: Vector, z: Complex, k: int, n: int) -> Complex:
    """z·exp(−2πi·k/n); an eighth of a turn or a multiple of a quarter without general products."""
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


def is_real(u: int, rows: int) -> bool:
    """Whether frequency u of the first or last column is real: it is its own mirror image."""
    return 2 * u % rows == 0


def edge_planes(rows: int) -> int:
    """Planes of the first column, and of the last: half a column and a line, as it is Hermitian."""
    return sum(1 if is_real(u, rows) else GAUSS for u in range(rows // 2 + 1))


def plane_count(rows: int, cols: int) -> int:
    """Planes of a rows×cols tile: first column, last column, then the columns between, u after u, GAUSS each."""
    return 2 * edge_planes(rows) + (cols // 2 - 1) * rows * GAUSS


class _Planes:
    """Reads or writes planes one after another, from an address on."""

    def __init__(self, vec: Vector, address: Any, plane: Any) -> None:
        self.vec, self.address, self.plane = vec, address, plane

    def _next(self) -> Any:
        here = self.address
        self.address = self.vec.offset(here, self.plane)
        return here

    def _store(self, value: Any) -> None:
        self.vec.store(value, self._next(), align=4 * self.vec.lanes)

    def _load(self) -> Any:
        return self.vec.load(self._next(), align=4 * self.vec.lanes)

    def put(self, re: Any, im: Any) -> None:
        """One frequency's planes; a real one has a single plane."""
        for value in (re,) if im is None else (self.vec.add(re, im), re, im):
            self._store(value)

    def get(self, real: bool) -> Complex:
        """One frequency from its products."""
        first = self._load()
        if real:
            return first, None
        second, third = self._load(), self._load()
        return self.vec.sub(first, third), self.vec.add(first, second)


def _loop(builder: ir.IRBuilder, first: int, last: int, body: Callable[[Any], None]) -> None:
    """Emit `for index in range(first, last): body(index)`."""
    if first >= last:
        return
    entry, block = builder.block, builder.append_basic_block("fft")
    builder.branch(block)
    builder.position_at_end(block)
    index = builder.phi(I64)
    index.add_incoming(I64(first), entry)
    body(index)
    following = builder.add(index, I64(1))
    index.add_incoming(following, builder.block)
    done = builder.append_basic_block("fft.done")
    builder.cbranch(builder.icmp_signed("<", following, I64(last)), block, done)
    builder.position_at_end(done)


@dataclass(frozen=True)
class FftTransform:
    """A rows×cols tile, cols even; the inverse keeps `out_rows`×`out_cols` outputs and applies the epilogue."""

    lanes: int
    rows: int
    cols: int
    out_rows: int = 0
    out_cols: int = 0
    residual: bool = False
    activation: tuple[Any, ...] | None = None


class _Scratch:
    """The tile between its two passes: complex numbers at (row, column), cols/2 a row."""

    def __init__(self, vec: Vector, address: Any, cols: int) -> None:
        self.vec, self.address, self.width, self.size = vec, vec.pointer(address), cols // 2, 4 * vec.lanes

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
        """The value at (row, column)."""
        slot = self._slot(row, column)
        return self.vec.load(slot, align=self.size), self.vec.load(self.vec.offset(slot, self.size), align=self.size)


def _edges(tile: FftTransform, vec: Vector, base: Any, plane: Any) -> tuple[_Planes, _Planes]:
    """The planes of the first column and of the last."""
    last = vec.builder.mul(plane, I64(edge_planes(tile.rows)))
    return _Planes(vec, base, plane), _Planes(vec, vec.offset(base, last), plane)


def _middle(tile: FftTransform, vec: Vector, base: Any, plane: Any, column: Any) -> _Planes:
    """The planes of a column between them."""
    builder = vec.builder
    first = builder.mul(builder.sub(column, I64(1)), I64(tile.rows * GAUSS))
    first = builder.add(first, I64(2 * edge_planes(tile.rows)))
    return _Planes(vec, vec.offset(base, builder.mul(first, plane)), plane)


@MicroKernel
def fft_in(
    tile: FftTransform, builder: ir.IRBuilder, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any
) -> None:
    """v + index·plane = the planes of the input tile at x; byte strides.

    Frequencies of the edge columns that are not real come doubled: the weights make up for it.
    """
    vec = Vector(builder, tile.lanes)
    rows, half = tile.rows, tile.cols // 2
    x, v, space = vec.pointer(x), vec.pointer(v), _Scratch(vec, scratch, tile.cols)

    def transform_row(row: ir.Value) -> None:
        start = vec.offset(x, builder.mul(line, row))
        values = [vec.load(vec.offset(start, builder.mul(pixel, I64(j)))) for j in range(tile.cols)]
        found = fourier_of_reals(vec, values)
        found[0] = found[0][0], found[half][0]
        for column in range(half):
            space.put(row, column, found[column])

    def transform_column(column: ir.Value) -> None:
        planes = _middle(tile, vec, v, plane, column)
        for value in fourier(vec, [space.get(row, column) for row in range(rows)]):
            planes.put(*value)

    _loop(builder, 0, rows, transform_row)
    _loop(builder, 1, half, transform_column)
    first, last = _edges(tile, vec, v, plane)
    found = fourier(vec, [space.get(row, 0) for row in range(rows)])
    for u in range(rows // 2 + 1):
        (re, im), (mirror_re, mirror_im) = found[u], found[-u]
        if is_real(u, rows):
            first.put(re, None)
            last.put(im, None)
        else:
            first.put(vec.add(re, mirror_re), vec.sub(im, mirror_im))
            last.put(vec.add(im, mirror_im), vec.sub(mirror_re, re))


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
    """y[i][j] = epilogue(rows·cols times the inverse transform of the products at m + index·plane); byte strides.

    `residual` is the distance from y to the residual.
    """
    vec = Vector(builder, tile.lanes)
    rows, half = tile.rows, tile.cols // 2
    m, y, space = vec.pointer(m), vec.pointer(y), _Scratch(vec, scratch, tile.cols)
    bias = vec.load(vec.pointer(bias))

    def put_column(column: Any, values: Sequence[Complex]) -> None:
        for row, value in enumerate(_inverse(vec, values)[: tile.out_rows]):
            space.put(row, column, value)

    def transform_column(column: ir.Value) -> None:
        planes = _middle(tile, vec, m, plane, column)
        put_column(column, [planes.get(real=False) for _ in range(rows)])

    def transform_row(row: ir.Value) -> None:
        edges, *values = (space.get(row, column) for column in range(half))
        values = [(edges[0], None), *values, (edges[1], None)]
        start = vec.offset(y, builder.mul(line, row))
        for j, value in enumerate(reals_of_fourier(vec, values, tile.cols)[: tile.out_cols]):
            target = vec.offset(start, builder.mul(pixel, I64(j)))
            extra = vec.load(vec.offset(target, residual)) if tile.residual else None
            vec.store(finish(vec, value, bias, extra, tile.activation), target)

    _loop(builder, 1, half, transform_column)
    first, last = _edges(tile, vec, m, plane)
    packed: list[Any] = [None] * rows
    for u in range(rows // 2 + 1):
        real = is_real(u, rows)
        (re, im), (last_re, last_im) = first.get(real), last.get(real)
        if real:
            packed[u] = re, last_re
        else:
            packed[u] = vec.sub(re, last_im), vec.add(im, last_re)
            packed[-u] = vec.add(re, last_im), vec.sub(last_re, im)
    put_column(0, packed)
    _loop(builder, 0, tile.out_rows, transform_row)
