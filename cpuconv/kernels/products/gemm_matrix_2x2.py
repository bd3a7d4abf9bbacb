"""GEMM tiles by 2 x 2 matrix instructions: two pixels times two output channels.

NEON's `smmla`, `usmmla` and `bfmmla` take eight bytes, two 32-bit groups, of each of two pixels and two output
channels. They add to four sums: [pixel 0, pixel 1] × [channel 0, channel 1]. Two vectors of sums therefore belong to
two pixels and four output channels. They are shuffled from and to one vector per pixel around the reduction.
Source: Arm's architecture reference manual.
"""

from __future__ import annotations

from typing import Any

from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.runtime.code.llvm import ir

_INT64X2 = ir.VectorType(I64, 2)
_EXCHANGED = ([0, 1, 4, 5], [2, 3, 6, 7])  # lanes of two vectors; the shuffle is its own inverse


def to_pairs(tile: GemmTile, vec: Vector, sums: list[Any]) -> list[Any]:
    """Convert sums by pixel to sums by pixel pair; an odd last pixel is paired with itself."""
    found = []
    for first, second in _pairs(tile):
        for j in range(tile.used):
            one, other = sums[first * tile.used + j], sums[second * tile.used + j]
            found += [vec.shuffle(one, other, lanes) for lanes in _EXCHANGED]
    return found


def from_pairs(tile: GemmTile, vec: Vector, pairs: list[Any]) -> list[Any]:
    """Convert sums by pixel pair to sums by pixel."""
    found: dict[int, Any] = {}
    for at, pixels in enumerate(_pairs(tile)):
        for j in range(tile.used):
            place = 2 * (at * tile.used + j)
            for pixel, lanes in reversed(list(zip(pixels, _EXCHANGED, strict=True))):
                found[pixel * tile.used + j] = vec.shuffle(pairs[place], pairs[place + 1], lanes)
    return [found[at] for at in range(len(found))]


def add_pairs(
    tile: GemmTile,
    vec: Vector,
    starts: list[Any],
    w: Any,
    k: int,
    unroll: int,
    sums: list[Any],
    ahead: dict[int, list[Any]],
) -> None:
    """Add the dot products of groups k and k + 1 of a segment of `unroll` groups to `sums`, which are by pixel pair.

    `ahead`: by group, the operands of all pairs that were read with those of earlier groups; read and written.
    """
    product = BY_NAME[tile.product]
    pixels, operands = tile.pixels, []
    for at, pair in enumerate(_pairs(tile)):
        places = [vec.offset(starts[row], 4 * (col * tile.xs + k)) for row, col in (pixels[i] for i in pair)]
        if k in ahead:
            operand = ahead[k][at]
        elif k + 4 <= unroll and tile.ks == 1:  # four groups of each pixel, for two multiplications
            one, other = (vec.builder.bitcast(vec.load_int(place, align=1), _INT64X2) for place in places)
            operand, following = (_shuffled(vec, one, other, lanes) for lanes in ([0, 2], [1, 3]))
            ahead.setdefault(k + 2, []).append(following)
        else:
            operand = _joined(vec, [_two_words(vec, place) for place in places])
        if product.flips(tile.x):
            flip = ir.Constant(operand.type, [ir.IntType(64)(-0x7F7F7F7F7F7F7F80)] * 2)
            operand = vec.builder.xor(operand, flip)
        operands.append(vec.builder.bitcast(operand, vec.int_type))
    for j in range(2 * tile.used):
        weight = product.load(vec, vec.offset(w, (k * tile.v + j) * vec.size))
        for at, operand in enumerate(operands):
            place = at * 2 * tile.used + j
            sums[place] = product.add(vec, operand, weight, sums[place])


def _pairs(tile: GemmTile) -> list[tuple[int, int]]:
    """Indices of the two pixels of each pair."""
    count = tile.rows * tile.cols
    return [(first, min(first + 1, count - 1)) for first in range(0, count, 2)]


def _two_words(vec: Vector, place: Any) -> Any:
    """Load eight bytes as an int64."""
    value = vec.builder.load(vec.builder.bitcast(place, I64.as_pointer()))
    value.align = 1
    return value


def _shuffled(vec: Vector, one: Any, other: Any, lanes: list[int]) -> Any:
    return vec.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), 2), lanes))


def _joined(vec: Vector, halves: list[Any]) -> Any:
    """Join two int64 halves to a vector."""
    joined: Any = ir.Constant(_INT64X2, ir.Undefined)
    for at, half in enumerate(halves):
        joined = vec.builder.insert_element(joined, half, I32(at))
    return joined
