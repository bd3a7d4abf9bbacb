"""Depthwise weights in 32-bit groups of four taps of a kernel column: assignment of taps to bytes, and packing."""

from __future__ import annotations

import functools

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.kernels.emit.product import BY_NAME, WORD
from cpuconv.kernels.packing.packing import Packing, Room, room
from cpuconv.kernels.packing.word_parts import in_parts
from cpuconv.problem.integers import divide

NONE = -1  # marks a byte of a group that is multiplied by no tap


@dataclass(frozen=True)
class Taps:
    """Arrangement of input rows in 32-bit groups, whose bytes are rows.

    `rows` output rows share groups. With stride 1 and three taps, the rows y … y+3 serve the outputs y and y+1, by the
    taps (0, 1, 2, none) and (none, 0, 1, 2). `each` rows fill a group; where it is 2, they are widened to 16 bits.
    """

    rows: int
    r: int
    stride: int
    dilation: int
    each: int = WORD

    @property
    def words(self) -> tuple[tuple[int, ...], ...]:
        """Input rows of each group, at most `each`, counted from the first one."""
        return _words(self)

    def pattern(self, row: int, word: int) -> tuple[int, ...] | None:
        """The tap of an output row for each byte of a group; None: no byte has one."""
        taps = []
        for at in range(self.each):
            offset = self.words[word][at] - row * self.stride if at < len(self.words[word]) else NONE
            tap, rest = divmod(offset, self.dilation)
            taps.append(tap if rest == 0 and 0 <= tap < self.r else NONE)
        return tuple(taps) if max(taps) > NONE else None

    @property
    def patterns(self) -> tuple[tuple[int, ...], ...]:
        """All distinct patterns, in the order of packed weights."""
        return _patterns(self)


@functools.lru_cache(maxsize=256)
def _words(taps: Taps) -> tuple[tuple[int, ...], ...]:
    met = {row * taps.stride + tap * taps.dilation for row in range(taps.rows) for tap in range(taps.r)}
    rows = sorted(met)
    return tuple(tuple(rows[first : first + taps.each]) for first in range(0, len(rows), taps.each))


@functools.lru_cache(maxsize=256)
def _patterns(taps: Taps) -> tuple[tuple[int, ...], ...]:
    every = (taps.pattern(row, word) for word in range(len(taps.words)) for row in range(taps.rows))
    return tuple(dict.fromkeys(pattern for pattern in every if pattern is not None))


@dataclass(frozen=True)
class TapWords(Packing):
    """Form [piece of channels][kernel column][pattern][part][vector][lanes][elements of a group's part].

    Missing channels, and bytes without a tap, are zero.

    Attributes
    ----------
    lanes, vectors : int
        Lanes per vector, and vectors per piece.
    k, s : int
        Channels, and kernel width.
    taps : Taps
    product : str
        Name of the dot-product kind in `product.TABLE`.
    w : Element
        Type of the weights before packing.
    """

    lanes: int
    vectors: int
    k: int
    s: int
    taps: Taps
    product: str
    w: Element

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return divide(self.k, self.vectors * self.lanes) * self.piece

    @property
    def piece(self) -> int:
        """Size of the weights of a piece of channels, in bytes."""
        vector = WORD * self.lanes * BY_NAME[self.product].parts
        return self.s * len(self.taps.patterns) * self.vectors * vector

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` has the type `w`, the result is uint8."""
        product, channels = BY_NAME[self.product], self.vectors * self.lanes
        pieces = divide(self.k, channels)
        filled = np.zeros((pieces * channels, self.taps.r + 1, self.s), product.packed.dtype)  # the last tap is none
        filled[: self.k, : self.taps.r] = weight[:, 0]
        words = filled[:, np.array(self.taps.patterns)]  # (channel, pattern, byte, column)
        parts = in_parts(np.moveaxis(words, 2, -1), product)
        split = parts.reshape(pieces, self.vectors, self.lanes, *parts.shape[1:])
        packed = place(self.size)
        packed[:] = np.ascontiguousarray(split.transpose(0, 4, 3, 6, 1, 2, 5)).view(np.uint8).ravel()
        return packed
