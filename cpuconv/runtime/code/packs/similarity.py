"""Order of kernels in a pack by similarity: a compressor stores repeated content of a block as a reference.

Each kernel has a sketch: its 6-byte sequences are hashed, and each of 128 hash ranges keeps its smallest hash. The more
sequences two kernels share, the more entries of their sketches agree. A block next takes the kernel whose sketch has
the most entries in common with the kernels in the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

_GRAM = 6  # bytes per sequence
_BINS = 128
_BIN_BITS = 57  # bits of a hash below the number of its range
_ODD = np.uint64(0x9E3779B97F4A7C15)
_EDGES = np.arange(_BINS, dtype=np.uint64) << np.uint64(_BIN_BITS)


def blocks(groups: Iterable[Sequence[bytes]], most: int) -> Iterator[list[bytes]]:
    """Yield blocks of at most `most` bytes, or of one content: group by group, ordered by similarity in a group.

    The result depends only on the contents and the order of groups.
    """
    block: list[bytes] = []
    size = 0
    for group in groups:
        left = _Remaining(group)
        while left:
            content = left.most_similar()
            if block and size + len(content) > most:
                yield block
                block, size = [], 0
                left.begin_block()
            block.append(content)
            size += len(content)
            left.take()
    if block:
        yield block


class _Remaining:
    """The contents of a group that are not in a block yet."""

    def __init__(self, group: Sequence[bytes]) -> None:
        self._group = group
        self._numbers = np.arange(len(group))
        self._sketches = np.array([_sketch(each) for each in group]).reshape(len(group), _BINS)
        self._matches = np.zeros((len(group), _BINS), bool)  # whether a sketch entry agrees with one in the block
        self._at = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def most_similar(self) -> bytes:
        """Return the content that is most similar to the block; the first one of equal ones."""
        matches = np.count_nonzero(self._matches, axis=1)
        found = np.flatnonzero(matches == matches.max())
        self._at = int(found[self._numbers[found].argmin()])
        return self._group[self._numbers[self._at]]

    def take(self) -> None:
        """Move the content that `most_similar` found into the block."""
        sketch, last = self._sketches[self._at].copy(), len(self) - 1
        for array in (self._numbers, self._sketches, self._matches):
            array[self._at] = array[last]
        self._numbers, self._sketches, self._matches = self._numbers[:last], self._sketches[:last], self._matches[:last]
        self._matches |= self._sketches == sketch

    def begin_block(self) -> None:
        """Start an empty block."""
        self._matches[:] = False


def _sketch(content: bytes) -> np.ndarray:
    """Return the low 16 bits of the smallest hash per range; an empty range takes the next range's."""
    letters = np.frombuffer(content.ljust(_GRAM, b"\0"), np.uint8).astype(np.uint64)
    count = len(letters) - _GRAM + 1
    grams = np.zeros(count, np.uint64)
    for place in range(_GRAM):
        grams |= letters[place : place + count] << np.uint64(8 * place)
    hashes = grams * _ODD
    hashes ^= hashes >> np.uint64(32)
    hashes = np.sort(hashes * _ODD)
    return hashes[np.searchsorted(hashes, _EDGES).clip(max=count - 1)].astype(np.uint16)
