"""Argument blocks of kernel calls, concatenated in one array."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpuconv.kernels.binding.bound_step import bind
from cpuconv.kernels.binding.steps import Step
from cpuconv.runtime.code.cache import Code

Changes = tuple[np.ndarray, np.ndarray]  # words that differ from those of another program: indices and values


class Words(NamedTuple):
    """The argument blocks of kernel calls, concatenated.

    Attributes
    ----------
    words : numpy.ndarray, int64
    starts : numpy.ndarray
        Index of the first word of each block, and the end of the last one.
    relocations : mapping of str to numpy.ndarray
        By base: indices of words that are addresses; they hold offsets from the base.
    codes : list of Code
        The kernel of each call.
    parts : list of int
        Parts of each call, per worker.
    kept : list
        Objects that the words point to.
    entries : numpy.ndarray, int64
        Addresses of `codes`.
    """

    words: np.ndarray
    starts: np.ndarray
    relocations: Mapping[str, np.ndarray]
    codes: Sequence[Code]
    parts: Sequence[int]
    kept: list[Any]
    entries: np.ndarray

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Words:
        """Bind steps, whose kernels are compiled."""
        kept: list[Any] = []
        rows = [bind(step, kept) for step in steps]
        starts, relocations = placed([(row.block.size, row.unresolved) for row in rows])
        words = np.concatenate([row.block for row in rows] or [np.zeros(0, np.int64)])
        codes = [row.code for row in rows]
        return cls(words, starts, relocations, codes, [row.parts for row in rows], kept, entries_of(codes, kept))

    @classmethod
    def joined(cls, parts: Sequence[Words]) -> Words:
        """Concatenate the words of calls."""
        if len(parts) == 1:
            return parts[0]
        firsts = [0, *itertools.accumulate(part.words.size for part in parts)]
        relocations: dict[str, list[np.ndarray]] = {}
        for first, part in zip(firsts, parts, strict=False):
            for base, places in part.relocations.items():
                relocations.setdefault(base, []).append(first + places)
        starts = [first + part.starts[:-1] for first, part in zip(firsts, parts, strict=False)]
        return cls(
            np.concatenate([part.words for part in parts]),
            np.concatenate([*starts, firsts[-1:]]).astype(np.int64),
            {base: np.concatenate(places) for base, places in relocations.items()},
            [code for part in parts for code in part.codes],
            [each for part in parts for each in part.parts],
            [part.kept for part in parts],
            np.concatenate([part.entries for part in parts]),
        )

    @property
    def structure(self) -> Hashable:
        """Kernels and places of addresses: what programs of different sizes may share."""
        addresses = [(base, places.tobytes()) for base, places in self.relocations.items()]
        return self.starts.tobytes(), *map(id, self.codes), *addresses

    def changed(self, calls: Sequence[Words]) -> tuple[Words, Changes]:
        """The concatenation of calls of this structure: what they share with this program, and the other words."""
        words = np.concatenate([each.words for each in calls])
        parts = [count for each in calls for count in each.parts]
        places = np.flatnonzero(words != self.words)
        shared = self._replace(parts=self.parts if parts == self.parts else parts, kept=[each.kept for each in calls])
        return shared, (places.astype(np.int32), words[places])

    def renamed(self, names: Mapping[str, str]) -> Words:
        """Rename bases."""
        return self._replace(relocations={names.get(base, base): places for base, places in self.relocations.items()})


def entries_of(codes: Sequence[Code], kept: list[Any]) -> np.ndarray:
    """Addresses of kernels, which `kept` keeps alive."""
    return np.array([code.address_for(kept) for code in codes], np.int64)


def placed(blocks: Sequence[tuple[int, Mapping[str, Sequence[int]]]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """`Words.starts` and `Words.relocations` of blocks, each given as its size in words and its addresses by base."""
    starts = [0, *itertools.accumulate(size for size, _ in blocks)]
    relocations: dict[str, list[int]] = {}
    for start, (_, unresolved) in zip(starts, blocks, strict=False):
        for base, places in unresolved.items():
            relocations.setdefault(base, []).extend([start + place for place in places])
    return np.array(starts), {base: np.array(places, np.int64) for base, places in relocations.items()}
