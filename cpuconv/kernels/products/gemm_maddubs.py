"""int8 GEMM tiles by `vpmaddubsw`: one sign-flipped group at a time, or two groups where weights are small.

`vpmaddubsw` multiplies unsigned by signed bytes and adds two products in int16. With one 32-bit group at a time, the
unsigned operand is the magnitudes of the weights. A flip mask gives pixels the signs (`emit/product.py`). This takes
four instructions per vector of weights, whatever the weights are.

With two groups at a time, pixels are the unsigned operand and weights the signed one. No sum saturates where the
positive weights of a pair add up to 128 at most, and the negative ones likewise. The sums of two groups, which wrap
around, are added to the offset that the flip mask would have added to pixels. The total equals that of flipped groups.
It fits int16 where the magnitudes of all four weights add up to 256 at most. Two groups take six instructions.

Packing checks for each segment whether its weights are small (`packing/joined_words.py`). It then replaces the four
vectors of two groups, magnitudes and flip masks, by the weights of the first group, those of the second, and the
offset. The last byte of the fourth vector is the flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.elements import S8
from cpuconv.isa.table import TABLE
from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.multiplying import hidden, multiply
from cpuconv.kernels.emit.product import BY_NAME, JOINED, JOINED_WORDS, WORD
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.tile_operands import State, TileOperands, prefetch
from cpuconv.runtime.code.llvm import ir

_HIGHEST = -0x7F7F7F80  # the sign bit of each byte: flipping it adds 128 and makes int8 uint8
_REGISTERS = {isa.lanes: isa.registers for isa in TABLE if isa.name in ("avx2", "avx512")}
_OTHERS = {1: 4, 2: 5}  # by groups per step: registers besides sums and weights: ones, groups, their products


def is_joined(tile: GemmTile, vec: Vector, w: Any) -> Any:
    """Whether a segment of at least two groups, with weights at `w`, is packed for two groups at a time."""
    flag = vec.builder.load(vec.offset(w, JOINED_WORDS * tile.vectors * vec.size - 1))
    return vec.builder.icmp_signed("==", flag, ir.IntType(8)(JOINED))


def sum_segment(
    tile: GemmTile,
    vec: Vector,
    operands: TileOperands,
    unroll: int,
    starts: list[Any],
    ahead: list[Any],
    now: State,
    at_once: int,
) -> State:
    """Emit a segment of `unroll` groups, the first of each tile row at `starts`: `at_once` per step, then the rest."""
    step = tile.vectors * vec.size
    sums, fetch_now, k = list(now.sums), now.fetch, 0
    while k < unroll:
        count = at_once if k + at_once <= unroll else 1
        for i in range(k, k + count):
            fetch_now = prefetch(tile, vec, operands, i, starts, ahead[i::unroll], now.w, fetch_now)
        pixels = [
            vec.offset(vec.offset(starts[row], operands.columns[col]), 4 * k * tile.ks) for row, col in tile.pixels
        ]
        words = [[vec.offset(pixel, 4 * i * tile.ks) for i in range(count)] for pixel in pixels]
        add(tile, vec, words, vec.offset(now.w, k * step), sums)
        k += count
        if tile.xs <= (unroll - 1) * tile.ks:
            starts = [vec.opaque(start) for start in starts]
    return State(vec.offset(now.w, unroll * step), fetch_now, sums)


def add(tile: GemmTile, vec: Vector, pixels: Sequence[Sequence[Any]], w: Any, sums: list[Any]) -> None:
    """Multiply one group, or two joined ones, of each pixel by the weights at `w`; add the results to `sums`.

    `pixels` has the addresses of each pixel's groups.
    """
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
    """Add the corrections (`Product.lacking`) of `words` adjacent groups of each pixel to the vectors after the tile's
    sums, one per pixel.
    """
    product = BY_NAME[tile.product]
    for at, pixel in enumerate(pixels, tile.sums):
        for first in range(0, words, vec.lanes):
            mask = vec.first_lanes_mask(min(vec.lanes, words - first))
            read = vec.builder.bitcast(vec.load_masked(vec.offset(pixel, WORD * first), mask), vec.int_type)
            signed = vec.builder.select(mask, product.signed(vec, read, tile.x), vec.int_constant(0))
            sums[at] = product.lacking(vec, signed, sums[at])


def completed(tile: GemmTile, vec: Vector, sums: Sequence[Any]) -> list[Any]:
    """The tile's sums, each with the correction of its pixel added."""
    whole = []
    for lanes in sums[tile.sums :]:
        distance = vec.lanes // 2
        while distance:
            turned = vec.shuffle(lanes, lanes, [lane ^ distance for lane in range(vec.lanes)])
            lanes, distance = vec.builder.add(lanes, turned), distance // 2
        whole.append(lanes)
    return [vec.builder.add(each, whole[at // tile.used]) for at, each in enumerate(sums[: tile.sums])]


class _Weights:
    """Weight vectors of one or two groups: as many as registers allow are loaded once for all pixels.

    `hidden` values are a barrier to the loads of the others, which thus become memory operands.
    """

    def __init__(self, tile: GemmTile, vec: Vector, w: Any, words: int) -> None:
        self._tile, self._vec, self._w = tile, vec, w
        order = [(part, j) for part in range(words + 1) for j in range(tile.used)]
        others = _OTHERS[words] + (words == JOINED_WORDS and tile.x == S8)  # the mask of the sign bits
        free = max(0, _REGISTERS[tile.lanes] - tile.sums - others)
        self._kept = {each: self._load(*each) for each in order[:free]}

    def read(self, part: int, j: int) -> Any:
        """Vector j of a part."""
        return self._kept.get((part, j)) or self._load(part, j)

    def _load(self, part: int, j: int) -> Any:
        place = self._vec.offset(self._w, self._vec.size * (part * self._tile.v + j))
        return self._vec.load_int(place, align=self._vec.size)


def _joined(vec: Vector, words: Sequence[Any], weights: Sequence[Any], total: Any) -> Any:
    """total + the dot products of two groups and their weights; the last vector of `weights` is the offset."""
    builder = vec.builder
    first = multiply(vec, "vpmaddubsw", words[0], weights[0])
    with_offset = builder.add(first, builder.bitcast(weights[JOINED_WORDS], first.type))
    both = builder.add(with_offset, multiply(vec, "vpmaddubsw", words[1], weights[1]))
    added = multiply(vec, "pmaddwd", both, ir.Constant(both.type, [1] * both.type.count))
    return hidden(vec, builder.add(total, added), ordered=True)
