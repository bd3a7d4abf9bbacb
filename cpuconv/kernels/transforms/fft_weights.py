"""Fourier transforms of weights, once per plan: the codelets of `transforms.fft` in float64, rounded once.

A tile has a few taps, and zeros elsewhere. The zeros are known when code is emitted, which omits operations on them.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, L2
from cpuconv.kernels.emit.double import ZERO, Double
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.transforms.fft import GAUSS, PLANES, REAL, REGULAR, Complex, Scratch, fourier, fourier_of_reals
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class FftWeights:
    """Transform of r×s taps, `row_step` and `column_step` pixels apart in a rows×cols tile."""

    lanes: int
    rows: int
    cols: int
    products: int  # GAUSS or REGULAR
    r: int
    s: int
    row_step: int
    column_step: int

    @property
    def scratch(self) -> int:
        """Scratch bytes for a channel's rows between the two passes."""
        return 8 * self.lanes * self.r * self.cols


@MicroKernel
def fft_weights(
    tile: FftWeights,
    builder: ir.IRBuilder,
    taps: Any,
    channels: Any,
    target: Any,
    plane: Any,
    pairs: Any,
    row: Any,
    scratch: Any,
) -> None:
    """Compute the planes of weights for those of `fft_in`, in float64.

    They are the conjugate transform divided by rows·cols; edge columns compensate for their doubled frequencies.

    Parameters
    ----------
    taps
        Address of `channels` (>= 1) times r·s vectors of taps.
    target, plane, row
        Address of the first plane, and byte strides of planes and of channels.
    pairs
        Address of the first pair of planes (`REGULAR` only). Pairs follow the real planes, at twice their stride.
        Imaginary parts are `row` bytes behind real parts.
    scratch
        Address of the worker's scratch memory.
        Address of the worker's scratch memory.
    """
    vec = Double(builder, tile.lanes)
    rows, middle, regular = tile.rows, tile.cols // 2, tile.products == REGULAR
    size, scale, quarter = vec.floats.size, vec.constant(1 / (tile.rows * tile.cols)), vec.constant(0.25)
    pair_plane, pair_row = builder.shl(plane, I64(1)), builder.shl(row, I64(1))
    taps, target, pairs = (vec.pointer(address) for address in (taps, target, pairs))

    def space(channel: Any) -> Scratch:
        return Scratch(vec, builder.add(scratch, builder.mul(channel, I64(tile.scratch))), tile.cols)

    def transform_row(channel: Any, index: Any) -> None:
        number = builder.add(builder.mul(channel, I64(tile.r)), index)
        start = vec.offset(taps, builder.mul(number, I64(size * tile.s)))
        values = [ZERO] * tile.cols
        for j in range(tile.s):
            values[j * tile.column_step] = vec.mul(vec.widen(vec.offset(start, size * j)), scale)
        found = fourier_of_reals(vec, values)
        found[0] = found[0][0], found[middle][0]
        for column in range(middle):
            space(channel).put(index, column, found[column])

    def column_of(channel: Any, column: Any) -> list[Complex]:
        values = [(ZERO, ZERO)] * rows
        for i in range(tile.r):
            values[i * tile.row_step] = space(channel).get(i, column)
        return fourier(vec, values)

    def put_vector(value: Any, place: Any, following: Any) -> None:
        vec.prefetch(vec.offset(place, following), L2, write=True)  # the next channel's
        vec.narrow(value, place)

    def put(channel: Any, number: Any, re: Any, im: Any) -> None:
        """Store complex number `number` of a channel, conjugated."""
        if regular:
            offset = builder.add(builder.mul(pair_plane, number), builder.mul(pair_row, channel))
            place = vec.offset(pairs, offset)
            put_vector(re, place, pair_row)
            put_vector(vec.negative(im), vec.offset(place, row), pair_row)
        else:
            first = builder.add(builder.mul(number, I64(PLANES[GAUSS])), I64(REAL))
            for i, value in enumerate((re, vec.negative(vec.add(re, im)), vec.sub(re, im))):
                put_real(channel, builder.add(first, I64(i)), value)

    def put_real(channel: Any, number: Any, value: Any) -> None:
        offset = builder.add(builder.mul(plane, number), builder.mul(row, channel))
        put_vector(value, vec.offset(target, offset), row)

    def transform_column(channel: Any, column: Any) -> None:
        first = builder.add(builder.mul(builder.sub(column, I64(1)), I64(rows)), I64(rows - 2))
        for u, value in enumerate(column_of(channel, column)):
            put(channel, builder.add(first, I64(u)), *value)

    def transform_edges(channel: Any) -> None:
        found = column_of(channel, 0)
        for i, value in enumerate((*found[0], *found[rows // 2])):
            put_real(channel, I64(i), value)
        for u in range(1, rows // 2):
            (re, im), (mirror_re, mirror_im) = found[u], found[-u]
            first = vec.add(re, mirror_re), vec.sub(im, mirror_im)
            last = vec.add(im, mirror_im), vec.sub(mirror_re, re)
            for i, number in enumerate((first, last)):
                put(channel, I64(2 * (u - 1) + i), *(vec.mul(part, quarter) for part in number))

    def each_channel(body: Any) -> None:
        loop(builder, 0, channels, body)

    each_channel(lambda channel: loop(builder, 0, tile.r, lambda index: transform_row(channel, index)))
    loop(builder, 1, middle, lambda column: each_channel(lambda channel: transform_column(channel, column)))
    each_channel(transform_edges)
