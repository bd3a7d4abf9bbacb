"""Weights of few output channels, for tiles whose lanes are input channels or pixels."""

from __future__ import annotations

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.kernels.emit.product import BY_NAME, WORD
from cpuconv.kernels.packing.packing import Packing, Room, room
from cpuconv.kernels.packing.word_parts import in_parts
from cpuconv.problem.integers import divide


@dataclass(frozen=True)
class FoldedWords(Packing):
    """Form [tile of K][R][S][block of C][channel of the tile][part][lanes][elements of a group's part].

    Missing channels are zero.

    Attributes
    ----------
    lanes, n : int
        32-bit groups per block, and output channels per tile; K is a multiple of `n`.
    k, c, r, s : int
        Output and input channels, kernel height and width.
    group : int
        Channels per 32-bit group.
    product : str
        Name of the dot-product kind in `product.TABLE`.
    w : Element
        Type of the weights before packing.
    copies : int
        Lanes with the same group, where a block has one group and lanes are pixels.
    """

    lanes: int
    n: int
    k: int
    c: int
    r: int
    s: int
    group: int
    product: str
    w: Element
    copies: int = 1

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.k // self.n * self.tile

    @property
    def tile(self) -> int:
        """Size of the weights of a tile, in bytes."""
        vector = WORD * self.lanes * self.copies * BY_NAME[self.product].parts
        return self.r * self.s * divide(self.c, self.lanes * self.group) * self.n * vector

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` has the type `w`, the result is uint8."""
        product, block = BY_NAME[self.product], self.lanes * self.group
        filled = np.zeros((self.k, divide(self.c, block) * block, self.r, self.s), product.packed.dtype)
        filled[:, : self.c] = weight
        words = filled.reshape(self.k // self.n, self.n, -1, self.lanes, self.group, self.r, self.s)
        parts = in_parts(np.ascontiguousarray(words.transpose(0, 5, 6, 2, 1, 3, 4)), product)  # […][elements][parts]
        packed = place(self.size)
        lanes = parts.transpose(0, 1, 2, 3, 4, 7, 5, 6).repeat(self.copies, -2)
        packed[:] = np.ascontiguousarray(lanes).view(np.uint8).ravel()
        return packed
