"""Kernels side by side that are alike: of what a block has already, a compressor keeps a reference alone.

Of every kernel there is a sketch: its sequences of six bytes are hashed, and of each of 128 ranges of hashes the least
one counts. Two kernels agree in as many places as they share sequences. A block takes the kernel next whose sketch is
found most in those of the kernels that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

_GRAM = 6  # bytes of a sequence
_BINS = 128
_BIN_BITS = 57  # of a hash, below those that number its range
_ODD = np.uint64(0x9E3779B97F4A7C15)
_EDGES = np.arange(_BINS, dtype=np.uint64) << np.uint64(_BIN_BITS)


def blocks(groups: Iterable[Sequence[bytes]], most: int) -> Iterator[list[bytes]]:
    """Blocks of at most so many bytes, or of one content: group after group, and of a group what is most alike.

    They depend on the order of the groups' contents, and on nothing else.
    """
    block: list[bytes] = []
    size = 0
    for group in groups:
        left = _Left(group)
        while left:
            content = left.likest()
            if block and size + len(content) > most:
                yield block
                block, size = [], 0
                left.begin_block()
            block.append(content)
            size += len(content)
            left.take()
    if block:
        yield block


class _Left:
    """The contents of a group that are in no block yet."""

    def __init__(self, group: Sequence[bytes]) -> None:
        self._group = group
        self._numbers = np.arange(len(group))
        self._sketches = np.array([_sketch(each) for each in group]).reshape(len(group), _BINS)
        self._met = np.zeros((len(group), _BINS), bool)  # where a sketch agrees with one in the block
        self._at = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def likest(self) -> bytes:
        """The content whose sketch is met most; of several the first one of the group."""
        met = np.count_nonzero(self._met, axis=1)
        found = np.flatnonzero(met == met.max())
        self._at = int(found[self._numbers[found].argmin()])
        return self._group[self._numbers[self._at]]

    def take(self) -> None:
        """What `likest` has found is in the block, and no longer left."""
        sketch, last = self._sketches[self._at].copy(), len(self) - 1
        for array in (self._numbers, self._sketches, self._met):
            array[self._at] = array[last]
        self._numbers, self._sketches, self._met = self._numbers[:last], self._sketches[:last], self._met[:last]
        self._met |= self._sketches == sketch

    def begin_block(self) -> None:
        """Nothing is in the block."""
        self._met[:] = False


def _sketch(content: bytes) -> np.ndarray:
    """Of each range of hashes sixteen bits of the least one, or of the next range's where there is none."""
    letters = np.frombuffer(content.ljust(_GRAM, b"\0"), np.uint8).astype(np.uint64)
    count = len(letters) - _GRAM + 1
    grams = np.zeros(count, np.uint64)
    for place in range(_GRAM):
        grams |= letters[place : place + count] << np.uint64(8 * place)
    hashes = grams * _ODD
    hashes ^= hashes >> np.uint64(32)
    hashes = np.sort(hashes * _ODD)
    return hashes[np.searchsorted(hashes, _EDGES).clip(max=count - 1)].astype(np.uint16)
