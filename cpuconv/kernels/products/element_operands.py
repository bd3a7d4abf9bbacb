"""Scalars of a segment that are read as vectors, for instructions that take one element of a vector as an operand.

Arm's `fmla` and dot products multiply a vector by one 32-bit element of another. A pixel's four scalars then need one
load instead of four. On in-order cores single loads are faster, as each issues together with an FMA.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.table import Isa
from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.product import BY_NAME, Product
from cpuconv.kernels.products.gemm_tile import GemmTile


@dataclass(frozen=True)
class ElementOperands:
    """Vectors that cover the scalars of a segment, each loaded at its first use.

    Attributes
    ----------
    starts : list
        Address of the first scalar of each tile row.
    places : dict
        (column, scalar) of the segment: first element of its vector, and its element of that vector.
    """

    vec: Vector
    product: Product
    x: Element
    starts: list[Any]
    places: dict[tuple[int, int], tuple[int, int]]
    loaded: dict[tuple[int, int], Any]

    @classmethod
    def of(cls, tile: GemmTile, vec: Vector, isa: Isa, unroll: int, starts: list[Any]) -> ElementOperands | None:
        """Return the vectors of a segment; None: single loads serve it better.

        No vector reaches past the segment's last scalar, so that nothing outside of the operand is read.
        """
        product = BY_NAME[tile.product]
        single = isa.scalars_per_load == 1 and not product.half_sums  # eight halves are one load everywhere
        if single or not product.by_element or tile.complex or not tile.xs or not tile.ks:
            return None
        offsets = {
            (col, k): col * tile.xs + k * tile.ks for col, k in itertools.product(range(tile.cols), range(unroll))
        }
        last = max(offsets.values()) - vec.lanes + 1
        if last < 0:
            return None
        firsts = {place: min(offset - offset % vec.lanes, last) for place, offset in offsets.items()}
        uses = defaultdict(set)
        for (_, k), first in firsts.items():
            uses[first].add(k)
        live = max(sum(min(ks) <= k <= max(ks) for ks in uses.values()) for k in range(unroll))
        if len(uses) == len(offsets) or tile.rows * live + tile.accumulators + 1 > isa.registers:
            return None
        places = {place: (first, offsets[place] - first) for place, first in firsts.items()}
        return cls(vec, product, tile.x, starts, places, {})

    def vector(self, row: int, col: int, k: int) -> tuple[Any, int]:
        """The vector that has scalar k of a pixel, and its element."""
        first, element = self.places[col, k]
        if (row, first) not in self.loaded:
            load = self.vec.load if self.product.packed == F32 else self.vec.load_int
            value = load(self.vec.offset(self.starts[row], 4 * first), align=1)
            self.loaded[row, first] = self.product.with_sign(self.vec, value, self.x)
        return self.loaded[row, first], element

    def scalar(self, row: int, col: int, k: int) -> Any:
        """Scalar k of a pixel in all lanes."""
        vector, element = self.vector(row, col, k)
        return self.vec.shuffle(vector, vector, [element] * self.vec.lanes)
