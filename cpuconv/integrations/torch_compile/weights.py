"""Detection of changed parameters and buffers, in a few microseconds per call."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cpuconv.reading.aten.tensors import memory_order

_NEAR = 256  # words among which one that is not 0 is searched
_WORD = 4  # bytes
_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


class Snapshot:
    """State of tensors: which objects they are, the addresses and versions of their elements, and one word of each.

    Versions count all updates in place except those through `.data`. These are noticed if they change a word in the
    middle of a tensor, as updates of whole tensors do.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Tensors in CPU memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._counted = not any(each.is_inference() for each in tensors)
        self._addresses = [*map(_address, tensors)]
        self._versions = [*map(_version, tensors)] if self._counted else []
        self._memory, self._places = _places(tensors)
        self._words = self._memory[self._places]

    def fits(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors, unchanged."""
        return (
            all(map(operator.is_, tensors, self.tensors))
            and [*map(_address, tensors)] == self._addresses
            and (not self._counted or [*map(_version, tensors)] == self._versions)
            and bool((self._memory[self._places] == self._words).all())
        )


def _places(tensors: Sequence[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Memory that holds all tensors as words, and the index of one word of each in it."""
    dense = [each for each in tensors if each.is_contiguous() or memory_order(each) is not None]
    ends = [(each.data_ptr(), each.numel() * each.element_size()) for each in dense]
    ends = [(start, size // _WORD) for start, size in ends if size >= _WORD and start % _WORD == 0]
    if not ends:
        return np.zeros(0, np.int32), np.zeros(0, np.intp)
    base = min(start for start, _ in ends)
    count = (max(start + words * _WORD for start, words in ends) - base) // _WORD
    memory = np.frombuffer((ctypes.c_int32 * count).from_address(base), np.int32)
    return memory, np.array([_telling(memory, (start - base) // _WORD, words) for start, words in ends], np.intp)


def _telling(memory: np.ndarray, start: int, words: int) -> int:
    """Index of a word that is not 0, so that a factor changes it; near the middle of its tensor."""
    first = start + words // 2
    near = memory[first : min(first + _NEAR, start + words)]
    return first + int(np.argmax(near != 0))
