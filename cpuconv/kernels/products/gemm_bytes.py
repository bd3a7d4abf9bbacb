"""Products of bytes by `vpmaddubsw` in GEMM tiles: words one by one, flipped, and two at once where weights are small.

`vpmaddubsw` adds two products of unsigned and signed bytes in 16 bits. One word at a time, weights are the unsigned
ones, by magnitudes, and what is flipped gives pixels their signs (`emit/product.py`): four instructions for each vector
of weights, whatever the weights are.

Two words at once, pixels are the unsigned bytes and weights the signed ones. No sum saturates where the weights of a
pair that are above zero add up to 128 at most, and those below zero likewise. The sums of two words, which wrap around,
are added to what flips would have added to pixels: the total is the one that flipped words give, and lies in 16 bits
where the magnitudes of all four weights add up to 256 at most. That is six instructions for two words.

Whether weights are small is asked of each segment when they are packed (`packing/joined_words.py`): in place of the
four vectors of two words, magnitudes and flips, lie weights of the first word, of the second, and what is added; the
last byte of the fourth says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.elements import S8
from cpuconv.isa.calls import call
from cpuconv.isa.table import TABLE
from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.multiplying import X86, hidden
from cpuconv.kernels.emit.product import BY_NAME, JOINED, JOINED_WORDS, WORD
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.runtime.code.llvm import ir

_HIGHEST = -0x7F7F7F80  # the bit of each byte that makes an unsigned one, 128 more, of a signed one
_REGISTERS = {isa.lanes: isa.registers for isa in TABLE if isa.name in ("avx2", "avx512")}
_OTHERS = {1: 4, 2: 5}  # by words: registers beside sums and weights: ones, words, their products


def is_joined(tile: GemmTile, vec: Vector, w: Any) -> Any:
    """Whether a segment of at least two words, whose weights are at `w`, is joined."""
    flag = vec.builder.load(vec.offset(w, JOINED_WORDS * tile.vectors * vec.size - 1))
    return vec.builder.icmp_signed("==", flag, ir.IntType(8)(JOINED))


def add(tile: GemmTile, vec: Vector, pixels: Sequence[Sequence[Any]], w: Any, sums: list[Any]) -> None:
    """Add the products of a word, or of two that are joined, of each pixel, at addresses, and the weights at `w` to
    `sums`, which are replaced."""
    product = BY_NAME[tile.product]
    count = len(pixels[0])
    weights = _Weights(tile, vec, w, count)
    for at, addresses in enumerate(pixels):
        words = [product.word(vec, address, False) for address in addresses]
        if count == JOINED_WORDS and tile.x == S8:
            words = [vec.builder.xor(hidden(vec, word), vec.int_constant(_HIGHEST)) for word in words]
        for j in range(tile.used):
            place = at * tile.used + j
            read = [weights.read(part, j) for part in range(count + 1)]
            if count == JOINED_WORDS:
                sums[place] = _joined(vec, words, read, sums[place])
            else:
                sums[place] = product.add(vec, words[0], read, sums[place])


def add_lacking(tile: GemmTile, vec: Vector, pixels: Sequence[Any], words: int, sums: list[Any]) -> None:
    """Add what products of so many words side by side at each pixel lack (`Product.lacking`) to what lies behind the
    tile's sums, a vector for each pixel.
    """
    product = BY_NAME[tile.product]
    for at, pixel in enumerate(pixels, tile.sums):
        for first in range(0, words, vec.lanes):
            mask = vec.first(min(vec.lanes, words - first))
            read = vec.builder.bitcast(vec.load_first(vec.offset(pixel, WORD * first), mask), vec.int_type)
            signed = vec.builder.select(mask, product.signed(vec, read, tile.x), vec.int_constant(0))
            sums[at] = product.lacking(vec, signed, sums[at])


def completed(tile: GemmTile, vec: Vector, sums: Sequence[Any]) -> list[Any]:
    """The tile's sums with what each pixel's lack, which lies behind them."""
    whole = []
    for lanes in sums[tile.sums :]:
        distance = vec.lanes // 2
        while distance:
            turned = vec.shuffle(lanes, lanes, [lane ^ distance for lane in range(vec.lanes)])
            lanes, distance = vec.builder.add(lanes, turned), distance // 2
        whole.append(lanes)
    return [vec.builder.add(each, whole[at // tile.used]) for at, each in enumerate(sums[: tile.sums])]


class _Weights:
    """Vectors of weights of so many words: as many as there are registers for are read once for all pixels.

    Loads of the others do not pass what is hidden, and so are operands in memory.
    """

    def __init__(self, tile: GemmTile, vec: Vector, w: Any, words: int) -> None:
        self._tile, self._vec, self._w = tile, vec, w
        order = [(part, j) for part in range(words + 1) for j in range(tile.used)]
        others = _OTHERS[words] + (words == JOINED_WORDS and tile.x == S8)  # what flips the highest bits
        free = max(0, _REGISTERS[tile.lanes] - tile.sums - others)
        self._kept = {each: self._load(*each) for each in order[:free]}

    def read(self, part: int, j: int) -> Any:
        """Vector j of a part."""
        return self._kept.get((part, j)) or self._load(part, j)

    def _load(self, part: int, j: int) -> Any:
        place = self._vec.offset(self._w, self._vec.size * (part * self._tile.v + j))
        return self._vec.load_int(place, align=self._vec.size)


def _joined(vec: Vector, words: Sequence[Any], weights: Sequence[Any], total: Any) -> Any:
    """total + the products of two words and their weights, whose last vector is what is added to them."""
    builder = vec.builder
    bytes_: Any = ir.VectorType(ir.IntType(8), 4 * vec.lanes)
    twos: Any = ir.VectorType(ir.IntType(16), 2 * vec.lanes)

    def products(at: int) -> Any:
        operands = [builder.bitcast(each, bytes_) for each in (words[at], weights[at])]
        return call(builder, X86["vpmaddubsw"][vec.size], twos, operands)

    both = builder.add(builder.add(products(0), builder.bitcast(weights[JOINED_WORDS], twos)), products(1))
    added = call(builder, X86["pmaddwd"][vec.size], vec.int_type, [both, ir.Constant(twos, [1] * twos.count)])
    return hidden(vec, builder.add(total, added), ordered=True)
