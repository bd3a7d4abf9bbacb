"""Weights of few output channels whose input channels lie across the lanes of a vector."""

from __future__ import annotations

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.kernels.emit.product import BY_NAME, WORD
from cpuconv.kernels.packing.packing import Packing, Room, room
from cpuconv.kernels.packing.word_parts import in_parts


@dataclass(frozen=True)
class FoldedWords(Packing):
    """[tile of K][R][S][block of C][channel of the tile][part][lanes][elements of a word's part].

    Channels that do not exist are zero, and so are those of a block that the one before has, too.

    Attributes
    ----------
    lanes, n : int
        Words of a block, and output channels of a tile, of which there are whole ones.
    k, c, r, s : int
        Output and input channels, kernel height and width.
    starts : tuple[int, ...]
        The first channel of each block.
    group : int
        Channels of a word.
    product : str
        A name in `product.TABLE`.
    w : Element
        Of the weights as given.
    """

    lanes: int
    n: int
    k: int
    c: int
    r: int
    s: int
    starts: tuple[int, ...]
    group: int
    product: str
    w: Element

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.k // self.n * self.tile

    @property
    def tile(self) -> int:
        """Bytes of the weights of a tile."""
        vector = WORD * self.lanes * BY_NAME[self.product].parts
        return self.r * self.s * len(self.starts) * self.n * vector

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """As `Packing` says; `weight` is of the element `w`, the result of bytes."""
        product, block = BY_NAME[self.product], self.lanes * self.group
        filled = np.zeros((self.k, len(self.starts), block, self.r, self.s), product.packed.dtype)
        for at, start in enumerate(self.starts):
            first, last = at * block, min(self.c, start + block)
            filled[:, at, first - start : last - start] = weight[:, first:last]
        words = filled.reshape(self.k // self.n, self.n, -1, self.lanes, self.group, self.r, self.s)
        parts = in_parts(np.ascontiguousarray(words.transpose(0, 5, 6, 2, 1, 3, 4)), product)  # […][elements][parts]
        packed = place(self.size)
        packed[:] = np.ascontiguousarray(parts.transpose(0, 1, 2, 3, 4, 7, 5, 6)).view(np.uint8).ravel()
        return packed
