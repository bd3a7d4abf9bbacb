"""Weights of few output channels that meet vectors of input channels, or of pixels."""

from __future__ import annotations

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.kernels.emit.product import BY_NAME, WORD
from cpuconv.kernels.packing.packing import Packing, Room, room
from cpuconv.kernels.packing.word_parts import in_parts
from cpuconv.problem.integers import divide


@dataclass(frozen=True)
class FoldedWords(Packing):
    """[tile of K][R][S][block of C][channel of the tile][part][lanes][elements of a word's part].

    Channels that do not exist are zero.

    Attributes
    ----------
    lanes, n : int
        Words of a block, and output channels of a tile, of which there are whole ones.
    k, c, r, s : int
        Output and input channels, kernel height and width.
    group : int
        Channels of a word.
    product : str
        A name in `product.TABLE`.
    w : Element
        Of the weights as given.
    copies : int
        Lanes that have the same word, where a block is of one word and lanes are pixels.
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
        """Bytes of the packed form."""
        return self.k // self.n * self.tile

    @property
    def tile(self) -> int:
        """Bytes of the weights of a tile."""
        vector = WORD * self.lanes * self.copies * BY_NAME[self.product].parts
        return self.r * self.s * divide(self.c, self.lanes * self.group) * self.n * vector

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """As `Packing` says; `weight` is of the element `w`, the result of bytes."""
        product, block = BY_NAME[self.product], self.lanes * self.group
        filled = np.zeros((self.k, divide(self.c, block) * block, self.r, self.s), product.packed.dtype)
        filled[:, : self.c] = weight
        words = filled.reshape(self.k // self.n, self.n, -1, self.lanes, self.group, self.r, self.s)
        parts = in_parts(np.ascontiguousarray(words.transpose(0, 5, 6, 2, 1, 3, 4)), product)  # […][elements][parts]
        packed = place(self.size)
        lanes = parts.transpose(0, 1, 2, 3, 4, 7, 5, 6).repeat(self.copies, -2)
        packed[:] = np.ascontiguousarray(lanes).view(np.uint8).ravel()
        return packed
