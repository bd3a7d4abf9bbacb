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


def _loop(vec: Vector, first: int, last: int, body: Callable[[Any], None]) -> None:
    """Emit `for index in range(first, last): body(index)`, which must run at least once or not at all."""
    if first >= last:
        return
    builder = vec.builder
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
    """A rows×cols tile (cols even) of which `out_rows`×`out_cols` outputs are kept; the epilogue is backward's."""

    lanes: int
    rows: int
    cols: int
    out_rows: int = 0
    out_cols: int = 0
    residual: bool = False
    activation: tuple[Any, ...] | None = None

    @property
    def planes(self) -> int:
        """Planes of a transformed tile."""
        return plane_count(self.rows, self.cols)

    def _slot(self, vec: Vector, scratch: Any, row: Any, column: Any) -> Any:
        """Address of the complex number at (row, column) in scratch memory."""
        builder = vec.builder
        row, column = (I64(index) if isinstance(index, int) else index for index in (row, column))
        index = builder.add(builder.mul(row, I64(self.cols // 2)), column)
        return vec.offset(scratch, builder.mul(index, I64(8 * vec.lanes)))

    def _put(self, vec: Vector, scratch: Any, row: Any, column: Any, value: Complex) -> None:
        slot, size = self._slot(vec, scratch, row, column), 4 * vec.lanes
        vec.store(value[0], slot, align=size)
        vec.store(value[1], vec.offset(slot, size), align=size)

    def _get(self, vec: Vector, scratch: Any, row: Any, column: Any) -> Complex:
        slot, size = self._slot(vec, scratch, row, column), 4 * vec.lanes
        return vec.load(slot, align=size), vec.load(vec.offset(slot, size), align=size)

    def _column_planes(self, vec: Vector, base: Any, plane: Any, column: Any) -> _Planes:
        """The planes of a column between the first and the last."""
        builder = vec.builder
        first = builder.add(
            builder.mul(builder.sub(column, I64(1)), I64(self.rows * GAUSS)), I64(2 * edge_planes(self.rows))
        )
        return _Planes(vec, vec.offset(base, builder.mul(first, plane)), plane)

    def _edges(self, vec: Vector, base: Any, plane: Any) -> tuple[_Planes, _Planes]:
        """The planes of the first column and of the last."""
        last = vec.builder.mul(plane, I64(edge_planes(self.rows)))
        return _Planes(vec, base, plane), _Planes(vec, vec.offset(base, last), plane)

    def forward(self, vec: Vector, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any) -> None:
        """Planes at v + index·plane of the input tile at x. Edge columns come doubled where they are not real."""
        builder = vec.builder
        rows, half = self.rows, self.cols // 2
        x, v, scratch = vec.pointer(x), vec.pointer(v), vec.pointer(scratch)

        def transform_row(row: ir.Value) -> None:
            start = vec.offset(x, builder.mul(line, row))
            values = [vec.load(vec.offset(start, builder.mul(pixel, I64(j)))) for j in range(self.cols)]
            found = fourier_of_reals(vec, values)
            found[0] = found[0][0], found[half][0]
            for column in range(half):
                self._put(vec, scratch, row, column, found[column])

        def transform_column(column: ir.Value) -> None:
            planes = self._column_planes(vec, v, plane, column)
            for value in fourier(vec, [self._get(vec, scratch, row, column) for row in range(rows)]):
                planes.put(*value)

        _loop(vec, 0, rows, transform_row)
        _loop(vec, 1, half, transform_column)
        first, last = self._edges(vec, v, plane)
        found = fourier(vec, [self._get(vec, scratch, row, 0) for row in range(rows)])
        for u in range(rows // 2 + 1):
            (re, im), (mirror_re, mirror_im) = found[u], found[-u]
            if is_real(u, rows):
                first.put(re, None)
                last.put(im, None)
            else:
                first.put(vec.add(re, mirror_re), vec.sub(im, mirror_im))
                last.put(vec.add(im, mirror_im), vec.sub(mirror_re, re))

    def backward(
        self, vec: Vector, m: Any, plane: Any, y: Any, line: Any, pixel: Any, bias: Any, residual: Any, scratch: Any
    ) -> None:
        """y[i][j] = epilogue(rows·cols times the inverse of the products at m + index·plane)."""
        builder = vec.builder
        rows, half = self.rows, self.cols // 2
        m, y, scratch = vec.pointer(m), vec.pointer(y), vec.pointer(scratch)
        bias = vec.load(vec.pointer(bias))
        residual = vec.pointer(residual) if self.residual else None

        def transform_column(column: Any, values: Sequence[Complex]) -> None:
            for row, value in enumerate(_inverse(vec, values)[: self.out_rows]):
                self._put(vec, scratch, row, column, value)

        def middle(column: ir.Value) -> None:
            planes = self._column_planes(vec, m, plane, column)
            transform_column(column, [planes.get(real=False) for _ in range(rows)])

        def transform_row(row: ir.Value) -> None:
            values = [self._get(vec, scratch, row, column) for column in range(half)]
            values = [(values[0][0], None), *values[1:], (values[0][1], None)]
            start = builder.mul(line, row)
            for j, value in enumerate(reals_of_fourier(vec, values, self.cols)[: self.out_cols]):
                offset = builder.add(start, builder.mul(pixel, I64(j)))
                extra = vec.load(vec.offset(residual, offset)) if residual is not None else None
                vec.store(finish(vec, value, bias, extra, self.activation), vec.offset(y, offset))

        _loop(vec, 1, half, middle)
        first, last = self._edges(vec, m, plane)
        packed: list[Any] = [None] * rows
        for u in range(rows // 2 + 1):
            real = is_real(u, rows)
            (re, im), (last_re, last_im) = first.get(real), last.get(real)
            if real:
                packed[u] = re, last_re
            else:
                packed[u] = vec.sub(re, last_im), vec.add(im, last_re)
                packed[-u] = vec.add(re, last_im), vec.sub(last_re, im)
        transform_column(0, packed)
        _loop(vec, 0, self.out_rows, transform_row)
