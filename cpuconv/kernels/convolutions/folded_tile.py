"""Tile for few output channels: vector lanes hold input channels, and sums are reduced across lanes.

An input vector is a block of channels of one pixel. It is multiplied by the same channels of each output channel's
weights, and each lane accumulates its own group. After all taps and blocks, the sums of as many pixels as a vector has
lanes are reduced: halves are added pairwise until a vector has one sum per pixel. The epilogue uses the values of one
output channel in all lanes, and stores part of a plane.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.product import BY_NAME, Product
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

_QUAD = 4
_WITHIN = 2  # reduction levels within quads of lanes
_SIGNS = -0x7F7F7F80  # 0x80 in each byte


@dataclass(frozen=True)
class FoldedTile:
    """Parameters of a folded tile, which has as many pixels as a vector has lanes.

    Attributes
    ----------
    n : int
        Output channels.
    at_once : int
        Pixels that are accumulated simultaneously.
    step : int
        Byte stride of the input between adjacent output pixels.
    product : str
        Name of the dot-product kind in `product.TABLE`.
    again : bool
        Pixels are loaded for each output channel, where sums would spill if they stayed in registers.
    """

    lanes: int
    n: int
    at_once: int
    step: int
    product: str
    x: Element
    sum: Element
    y: Element
    again: bool = False
    residual: bool = False
    activation: tuple[Any, ...] | None = None

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of sums."""
        return Epilogue(self.sum, self.y, self.residual, self.activation)


@MicroKernel
def folded_strip(
    tile: FoldedTile,
    builder: ir.IRBuilder,
    x: Any,
    table: Any,
    segments: Any,
    w: Any,
    y: Any,
    yplane: Any,
    bias: Any,
    residual: Any,
    first: Any,
    last: Any,
    high: Any,
) -> None:
    """Compute tiles first … last-1 of a row; tile i starts at output pixel i·lanes, but not after `high`.

    Parameters
    ----------
    x, y
        Addresses of the input and the output of pixel 0.
    table, segments
        Address of the byte offsets of each channel block at each tap, and their number.
    w
        Address of the tile's weights, packed by `FoldedWords`.
    yplane
        Byte stride of output channels.
    bias
        Address of the epilogue rows of the first output channel.
    residual
        Distance in bytes from y to the residual.
    first, last, high
        As above; first < last.
    """
    vec = Vector(builder, tile.lanes)
    weights, rows = vec.pointer(w), vec.pointer(bias)
    table = builder.inttoptr(table, I64.as_pointer())
    level = tile.at_once.bit_length() - 1

    def one(index: Any) -> None:
        pixel = builder.mul(builder.add(first, index), I64(tile.lanes))
        pixel = builder.select(builder.icmp_signed("<", pixel, high), pixel, high)
        x_now = vec.pointer(builder.add(x, builder.mul(pixel, I64(tile.step))))
        y_now = vec.pointer(builder.add(y, builder.mul(pixel, I64(tile.y.bytes))))
        sums: list[list[Any]] = [[] for _ in range(tile.n)]
        for start in range(0, tile.lanes, tile.at_once):
            made = _sums(tile, vec, vec.offset(x_now, start * tile.step), table, segments, weights)
            for k, each in enumerate(sums):
                each.append(folded(vec, made[k]))
        for k, each in enumerate(sums):
            place = vec.offset(y_now, builder.mul(yplane, I64(k)))
            numbers = numbers_of(tile, vec, rows, k)
            tile.epilogue.store(vec, folded(vec, each, level), numbers, place, residual)

    loop(builder, 0, builder.sub(last, first), one)


call_folded_strip = folded_strip.caller()


def _sums(tile: FoldedTile, vec: Vector, x: Any, table: Any, segments: Any, weights: Any) -> list[list[Any]]:
    """Sums [output channel][pixel] of the pixels from `x` on, not yet reduced across lanes."""
    builder, product, size = vec.builder, BY_NAME[tile.product], vec.size
    row = tile.n * product.parts * size

    def segment(index: Any, sums: list[Any]) -> list[Any]:
        source = vec.offset(x, builder.load(builder.gep(table, [index])))
        place = vec.offset(weights, builder.mul(index, I64(row)))
        made: list[Any] = []
        words = _pixels(tile, product, vec, source)
        for k in range(tile.n):
            if k and tile.again:
                words = _pixels(tile, product, vec, vec.opaque(source))
            at = vec.offset(place, k * product.parts * size)
            loaded = [product.load(vec, vec.offset(at, part * size), size) for part in range(product.cuts)]
            for i, parts in enumerate(words):
                total = sums[k * tile.at_once + i]
                for part, weight in zip(parts, loaded, strict=True):
                    total = product.add(vec, part, weight, total)
                made.append(total)
        return made

    nothing = ir.Constant(product.sums_type(vec), None)
    found = repeat(vec, I64(0), segments, [nothing] * (tile.n * tile.at_once), segment)
    return [found[k * tile.at_once : (k + 1) * tile.at_once] for k in range(tile.n)]


def _pixels(tile: FoldedTile, product: Product, vec: Vector, source: Any) -> list[list[Any]]:
    """Load the groups of a channel block, of the pixels from `source` on."""
    read = [vec.load_int(vec.offset(source, i * tile.step), align=1) for i in range(tile.at_once)]
    return [words_of(product, vec, each, tile.x) for each in read]


def words_of(product: Product, vec: Vector, words: Any, x: Element) -> list[Any]:
    """Convert groups of elements `x` to the sign that the dot-product kind takes, and split them in its parts."""
    words = vec.builder.bitcast(words, vec.int_type)
    if product.flips(x):
        words = vec.builder.xor(words, vec.int_constant(_SIGNS))
    return product.split(vec, words, x)


class _Everywhere(Vector):
    """A vector whose load broadcasts one number to all lanes."""

    def load(self, address: Any, align: int = 4) -> Any:
        return self.broadcast(address)


def numbers_of(tile: Any, vec: Vector, rows: Any, channel: int) -> dict[str, Any]:
    """Load an output channel's epilogue values into all lanes; reloaded on each call."""
    return tile.epilogue.load(_Everywhere(vec.builder, vec.lanes), vec.offset(vec.opaque(rows), 4 * channel))


def folded(vec: Vector, sums: list[Any], level: int = 0) -> Any:
    """Reduce as many vectors as there are lanes to one vector with the sum of each: within quads, then across quads.

    Fewer vectors give an intermediate result; `level` is the number of halvings that they had before.
    """
    while len(sums) > 1:
        orders = [_order(vec.lanes, 1 if level < _WITHIN else _QUAD, side) for side in (0, 1)]
        pairs = zip(sums[::2], sums[1::2], strict=True)
        sums = [vec.builder.add(*(vec.shuffle(a, b, order) for order in orders)) for a, b in pairs]
        level += 1
    return sums[0]


def _order(lanes: int, width: int, side: int) -> list[int]:
    """Every other run of `width` lanes of two vectors, from run `side` on; runs of one lane alternate within quads."""
    if width == 1:
        quads = range(0, lanes, _QUAD)
        return [vector * lanes + quad + i + side for quad in quads for vector in (0, 1) for i in (0, 2)]
    return [start + side * width + i for start in range(0, 2 * lanes, 2 * width) for i in range(width)]
