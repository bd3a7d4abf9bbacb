"""Argument words of kernel calls as functions of traced sizes: evaluated for each new size, without lowering again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.kernels.binding.bound_step import words_of
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.words import Words, entries_of, placed
from cpuconv.problem.arrays import address
from cpuconv.symbolic.sizes import Affine, is_symbolic, now

TABLES = "tables"
"""Base of the arrays of sizes, which each program stores in one array."""


class WordTable:
    """The words of steps that were lowered for traced sizes.

    Parameters
    ----------
    steps : Sequence[Step]
        Their kernels are compiled or loaded here.

    Attributes
    ----------
    sizes : list of Size
        Sizes on which words and parts depend; `words` takes their values in this order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.sizes: list[Any] = []
        self._kept: list[Any] = []
        self._places: dict[int, int] = {}  # index in `sizes` by the size's index in the trace
        self._tables = _Tables(self)
        # words that are addresses of computed arrays, and the arrays' index in `sizes`
        self._arrays: list[tuple[int, int]] = []
        varying: list[tuple[int, int]] = []
        base: list[int] = []
        blocks = []
        for step in steps:
            words, unresolved = words_of(step, self._kept)
            for at, value in enumerate(words):
                if type(value) is int:
                    continue
                words[at], place = 0, len(base) + at
                if not is_symbolic(value):
                    words[at] = self._tables.add(value)
                    unresolved.setdefault(TABLES, []).append(at)
                elif isinstance(now(value), np.ndarray):
                    self._arrays.append((place, self.place(value)))
                else:
                    varying.append((place, self.place(value)))
            base += words
            blocks.append((len(words), unresolved))
        self._base = np.array(base, np.int64)
        self._starts, self._patches = placed(blocks)
        self._codes = [step.kernel.entry(step.tile) for step in steps]
        self._entries = entries_of(self._codes, self._kept)
        self._parts: list[Any] = [step.parts for step in steps]
        for each in self._parts:
            if is_symbolic(each):
                self.place(each)
        self._varying = _columns(varying)
        self._tables.close()

    def place(self, size: Any) -> int:
        """Index of a size in `sizes`; appends it if it is new."""
        place = self._places.get(size.place)
        if place is None:
            place = self._places[size.place] = len(self.sizes)
            self.sizes.append(size)
        return place

    def words(self, numbers: Sequence[Any]) -> tuple[Words, np.ndarray]:
        """Evaluate the words for the values of `sizes`; also returns the array at `TABLES`."""
        arrays = [(place, numbers[at]) for place, at in self._arrays]
        plain = [*numbers]
        for _, at in self._arrays:
            plain[at] = 0
        values = np.array(plain, np.int64)
        words = self._base.copy()
        places, indices = self._varying
        words[places] = values[indices]
        for place, array in arrays:
            words[place] = address(array)
        parts = [numbers[self._places[each.place]] if is_symbolic(each) else each for each in self._parts]
        kept = [self._kept, *(array for _, array in arrays)]
        made = Words(words, self._starts, self._patches, self._codes, parts, kept, self._entries)
        return made, self._tables.array(values)


class _Tables:
    """Arrays of sizes, concatenated."""

    def __init__(self, owner: WordTable) -> None:
        self._owner = owner
        self._parts: list[np.ndarray] = []
        self._size = 0
        self._known: dict[Any, int] = {}
        self._elements: list[tuple[int, int]] = []  # elements that are traced sizes
        self._terms: list[list[tuple[np.ndarray, np.ndarray, int]]] = []  # by term number: elements, factors, size

    def add(self, array: Any) -> int:
        """Append an array and return its offset in bytes; equal arrays are stored once."""
        key = _key(array)
        start = self._known.get(key)
        if start is None:
            start = self._known[key] = self._size
            self._add(array)
        return 8 * start

    def _add(self, array: Any) -> None:
        start = self._size
        if isinstance(array, Affine):
            base = array.base.ravel()
            for number, (size, factors) in enumerate(array.terms):
                if number == len(self._terms):
                    self._terms.append([])
                used = np.flatnonzero(factors.ravel())
                self._terms[number].append((start + used, factors.ravel()[used], self._owner.place(size)))
        else:
            elements = array.ravel().tolist()
            self._elements += [
                (start + at, self._owner.place(each)) for at, each in enumerate(elements) if is_symbolic(each)
            ]
            base = np.array([0 if is_symbolic(each) else each for each in elements], np.int64)
        self._parts.append(base)
        self._size += base.size

    def close(self) -> None:
        """Finish: no array is added after this call."""
        self._base = np.concatenate(self._parts or [np.zeros(0, np.int64)])
        self._at = _columns(self._elements)
        self._columns = [
            (
                np.concatenate([places for places, _, _ in terms]),
                np.concatenate([factors for _, factors, _ in terms]),
                np.concatenate([np.full(len(places), at) for places, _, at in terms]),
            )
            for terms in self._terms
        ]

    def array(self, values: np.ndarray) -> np.ndarray:
        """Evaluate all arrays for the values of the owner's sizes."""
        made = self._base.copy()
        places, at = self._at
        made[places] = values[at]
        for places, factors, at in self._columns:
            made[places] += factors * values[at]
        return made


def _key(array: Any) -> Any:
    if isinstance(array, Affine):
        return array.base.tobytes(), tuple((size.place, factors.tobytes()) for size, factors in array.terms)
    return tuple((True, each.place) if is_symbolic(each) else (False, each) for each in array.ravel().tolist())


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    first, second = itertools.tee(pairs)
    return np.array([a for a, _ in first], np.int64), np.array([b for _, b in second], np.int64)
