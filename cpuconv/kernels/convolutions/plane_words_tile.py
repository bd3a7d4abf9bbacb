"""int8 tile for few output channels, whose lanes are pixels: channel planes in and out.

It loads a vector of bytes of each of four input planes and interleaves them byte by byte. The result is four vectors of
32-bit groups: lanes are pixels, and bytes are channels. Each is multiplied by one group of weights, broadcast to all
lanes. After all channels, sums are shuffled to pixel order. The epilogue broadcasts the values of one output channel,
and stores parts of planes.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.convolutions.folded_tile import numbers_of, words_of
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.interleave import interleaved
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.product import BY_NAME, WORD
from cpuconv.kernels.emit.transpose import join
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

_QUAD = 4


@dataclass(frozen=True)
class PlaneWordsTile:
    """Parameters of the tile.

    Attributes
    ----------
    n : int
        Output channels.
    wide : int
        Vectors of int8 of a plane.
    product : str
        Name of the dot-product kind in `product.TABLE`.
    resume, suspend : bool
        Sums are loaded from a buffer, or stored to it.
    """

    lanes: int
    n: int
    wide: int
    product: str
    x: Element
    sum: Element
    y: Element
    resume: bool = False
    suspend: bool = False
    residual: bool = False
    activation: tuple[Any, ...] | None = None

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of sums."""
        return Epilogue(self.sum, self.y, self.residual, self.activation)

    @property
    def suspended_vectors(self) -> int:
        """Bytes of a tile's sums in the buffer."""
        return self.n * self.pixels * self.sum.bytes

    @property
    def pixels(self) -> int:
        """Pixels of a tile."""
        return self.wide * WORD * self.lanes


@MicroKernel
def plane_words_strip(
    tile: PlaneWordsTile,
    builder: ir.IRBuilder,
    x: Any,
    table: Any,
    segments: Any,
    w: Any,
    y: Any,
    yplane: Any,
    bias: Any,
    residual: Any,
    suspended_sums: Any,
    first: Any,
    last: Any,
    high: Any,
) -> None:
    """Compute tiles first … last-1 of a plane that is one row; the parameters are those of `folded_strip`.

    The table has the byte offsets of four planes per segment. `suspended_sums` is the address of the sums of tile
    `first`.
    """
    vec, product = Vector(builder, tile.lanes), BY_NAME[tile.product]
    weights, rows = vec.pointer(w), vec.pointer(bias)
    table = builder.inttoptr(table, I64.as_pointer())
    size, count = vec.size * product.parts, WORD * tile.wide

    def one(index: Any) -> None:
        pixel = builder.mul(builder.add(first, index), I64(tile.pixels))
        pixel = builder.select(builder.icmp_signed("<", pixel, high), pixel, high)
        x_now = vec.pointer(builder.add(x, pixel))
        y_now = vec.pointer(builder.add(y, builder.mul(pixel, I64(tile.y.bytes))))

        def segment(index: Any, sums: list[Any]) -> list[Any]:
            places = [builder.add(builder.mul(index, I64(WORD)), I64(i)) for i in range(WORD)]
            planes = [vec.offset(x_now, builder.load(builder.gep(table, [place]))) for place in places]
            start = vec.offset(weights, builder.mul(index, I64(tile.n * size)))
            made = list(sums)
            for piece in range(tile.wide):
                read = [vec.load(vec.offset(plane, piece * vec.size), align=1) for plane in planes]
                words = [words_of(product, vec, each, tile.x) for each in interleaved(vec, 1, read)]
                for k in range(tile.n):
                    at = vec.offset(start, k * size)
                    loaded = [product.load(vec, vec.offset(at, p * vec.size), vec.size) for p in range(product.cuts)]
                    for i, parts in enumerate(words):
                        place = k * count + piece * WORD + i
                        for part, weight in zip(parts, loaded, strict=True):
                            made[place] = product.add(vec, part, weight, made[place])
            return made

        sums: list[Any] = [ir.Constant(product.sums_type(vec), None)] * (tile.n * count)
        waiting = vec.pointer(builder.add(suspended_sums, builder.mul(index, I64(tile.n * count * vec.size))))
        if tile.resume:
            sums = [vec.load_int(vec.offset(waiting, i * vec.size)) for i in range(len(sums))]
        sums = repeat(vec, I64(0), segments, sums, segment)
        if tile.suspend:
            for i, total in enumerate(sums):
                vec.store(builder.bitcast(total, vec.type), vec.offset(waiting, i * vec.size))
            return
        for k in range(tile.n):
            place = vec.offset(y_now, builder.mul(yplane, I64(k)))
            numbers = numbers_of(tile, vec, rows, k)
            for piece in range(tile.wide):
                start = k * count + piece * WORD
                for i, total in enumerate(_in_order(vec, sums[start : start + WORD])):
                    at = (piece * WORD + i) * tile.lanes * tile.y.bytes
                    tile.epilogue.store(vec, total, numbers, vec.offset(place, at), residual)

    loop(builder, 0, builder.sub(last, first), one)


call_plane_words_strip = plane_words_strip.caller()


def _in_order(vec: Vector, four: list[Any]) -> list[Any]:
    """Reorder sums of interleaved groups to adjacent pixels: quad q of vector i has the pixels from 16·q + 4·i on."""
    quads = vec.lanes // _QUAD

    def quad(number: int) -> Any:
        value, at = four[number % WORD], number // WORD * _QUAD
        return vec.shuffle(value, value, range(at, at + _QUAD))

    return [join(vec, [quad(first + i) for i in range(quads)]) for first in range(0, WORD * quads, quads)]
