"""Scalars of a segment that are read as vectors, for instructions that take one element of a vector as an operand.

Arm's `fmla` and dot products multiply a vector by one 32-bit element of another. A pixel's four scalars then need one
load instead of four. On in-order cores loads are of two scalars, as each of these issues together with an FMA.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.neon import load_operand
from cpuconv.isa.table import Isa
from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.product import BY_NAME, Product
from cpuconv.kernels.products.gemm_tile import GemmTile

_PAIR = 2  # scalars


@dataclass(frozen=True)
class ElementOperands:
    """Vectors that cover the scalars of a segment, each loaded at its first use.

    Attributes
    ----------
    starts : list
        Address of the first scalar of each tile row.
    places : dict
        (column, scalar) of the segment: first element of its vector, and its element of that vector.
    lanes : int
        Lanes of the vectors that a scalar is multiplied by.
    paired : bool
        Scalars 2·k and 2·k + 1 of a pixel are a vector, which takes a register only while it multiplies both weights.
    """

    vec: Vector
    product: Product
    x: Element
    starts: list[Any]
    places: dict[tuple[int, int], tuple[int, int]]
    loaded: dict[tuple[int, int], Any]
    lanes: int
    paired: bool

    @classmethod
    def of(cls, tile: GemmTile, vec: Vector, isa: Isa, unroll: int, starts: list[Any]) -> ElementOperands | None:
        """Return the vectors of a segment; None: single loads serve it better.

        No vector reaches past the segment's last scalar, so that nothing outside of the operand is read.
        """
        product = BY_NAME[tile.product]
        lanes = vec.lanes if product.half_sums else isa.scalars_per_load  # eight halves are one load everywhere
        if lanes == 1 or not product.by_element or tile.complex or not tile.xs or not tile.ks:
            return None
        offsets = {
            (col, k): col * tile.xs + k * tile.ks for col, k in itertools.product(range(tile.cols), range(unroll))
        }
        last = max(offsets.values()) - lanes + 1
        if last < 0:
            return None
        firsts = {place: min(offset - offset % lanes, last) for place, offset in offsets.items()}
        uses = defaultdict(set)
        for (_, k), first in firsts.items():
            uses[first].add(k)
        live = max(sum(min(ks) <= k <= max(ks) for ks in uses.values()) for k in range(unroll))
        paired = lanes == _PAIR >= tile.used and tile.ks == 1 and tile.xs % _PAIR == 0 and unroll <= tile.xs
        if lanes < vec.lanes:  # and weights in flight
            live = 1 + 2 * (tile.used + 1) if paired else live + tile.used + 1
        if len(uses) == len(offsets) or tile.rows * live + tile.accumulators + 1 > isa.registers:
            return None
        places = {place: (first, offsets[place] - first) for place, first in firsts.items()}
        narrow = vec if lanes == vec.lanes else Vector(vec.builder, lanes)
        return cls(narrow, product, tile.x, starts, places, {}, vec.lanes, paired)

    def vector(self, row: int, col: int, k: int) -> tuple[Any, int]:
        """The vector that has scalar k of a pixel, and its element."""
        first, element = self.places[col, k]
        if (row, first) not in self.loaded:
            kind = self.vec.type if self.product.packed == F32 else self.vec.int_type
            value = load_operand(self.vec, self.vec.offset(self.starts[row], 4 * first), kind, align=1)
            self.loaded[row, first] = self.product.with_sign(self.vec, value, self.x)
        return self.loaded[row, first], element

    def scalar(self, row: int, col: int, k: int) -> Any:
        """Scalar k of a pixel in all lanes."""
        vector, element = self.vector(row, col, k)
        return self.vec.shuffle(vector, vector, [element] * self.lanes)
