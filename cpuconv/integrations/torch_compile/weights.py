"""Detection of changed parameters and buffers, in a few microseconds per call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch

from cpuconv.integrations.torch_compile.tensor_state import MEMORY, State, place
from cpuconv.reading.aten.tensors import memory_order

_BYTES = 16384  # compared at each call
_TENSOR_BYTES = 1024  # cost of one more tensor or part, as that of bytes
_NEAR = 256  # words among which one that is not 0 is searched
_WORD = MEMORY.itemsize


class Snapshot:
    """State of tensors: which objects they are, their `State`, one word of each, and checksums of all elements.

    Versions count all updates in place except those through `.data`. These are noticed at once if they change a word
    in the middle of a tensor, as updates of whole tensors do. Checksums notice all others: each call compares those of
    the next part of the elements, of `_BYTES` bytes.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Tensors in CPU memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._state = State(self.tensors)
        dense = [_bytes(each) for each in tensors]
        self._state.record(np.array([_telling(each) for each in dense if each.size >= 2 * _WORD], np.int64))
        self._parts = _parts(dense)
        self._next = 0

    def fits(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors, unchanged as far as this call can tell."""
        if not all(map(operator.is_, tensors, self.tensors)) or not self._state.unchanged():
            return False
        at = self._next
        self._next = at + 1 if at + 1 < len(self._parts) else 0
        return all([crc32(part) == found for part, found in self._parts[at]])


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    """Memory of a tensor's elements; none for tensors with gaps."""
    dense = tensor.is_contiguous() or memory_order(tensor) is not None
    size = tensor.numel() * tensor.element_size() if dense else 0
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    start = tensor.storage_offset() * tensor.element_size()
    array: np.ndarray = whole.numpy()[start : start + size]
    return array


def _telling(array: np.ndarray) -> int:
    """Position of an aligned word that is not 0, so that a factor changes it; near the middle of its tensor."""
    first = -array.ctypes.data % _WORD
    words = array[first : first + (array.size - first) // _WORD * _WORD].view(np.int64)
    middle = len(words) // 2
    return place(words.ctypes.data) + middle + int(np.argmax(words[middle : middle + _NEAR] != 0))


def _parts(arrays: Sequence[np.ndarray]) -> list[list[tuple[memoryview, int]]]:
    """Parts of the elements with their checksums: a list for each call, in turns."""
    parts: list[list[tuple[memoryview, int]]] = [[]]
    room = _BYTES
    for array in arrays:
        for at in range(0, array.size, _BYTES - _TENSOR_BYTES):
            part = array[at : at + _BYTES - _TENSOR_BYTES].data
            if room < part.nbytes + _TENSOR_BYTES:
                parts.append([])
                room = _BYTES
            parts[-1].append((part, crc32(part)))
            room -= part.nbytes + _TENSOR_BYTES
    return parts
