"""Detection of changed parameters and buffers, in a few microseconds per call."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.torch_version import TorchVersion

from cpuconv.reading.aten.tensors import memory_order

_BYTES = 16384  # compared at each call
_TENSOR_BYTES = 1024  # cost of one more tensor or part, as that of bytes
_NEAR = 256  # words among which one that is not 0 is searched
_WORD = 8  # bytes
_GUARDED = "2.13"  # from this version on, Dynamo is known to guard sizes and strides of parameters
_version = operator.attrgetter("_version")


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


_place: Any = torch.Tensor.data_ptr if TorchVersion(torch.__version__) >= _GUARDED else _geometry


class Snapshot:
    """State of tensors: objects, addresses and versions of elements, one word of each, and checksums of all elements.

    Sizes and strides are guarded by Dynamo; in older versions of PyTorch they are compared, too. Versions count all
    updates in place except those through `.data`. These are noticed at once if they change a word in the middle of a
    tensor, as updates of whole tensors do. Checksums notice all others: each call compares those of the next part of
    the elements, of `_BYTES` bytes.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Tensors in CPU memory. They and their storages are kept alive.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._counted = not any(map(torch.is_inference, tensors))  # inference tensors have no versions
        self._addresses = [*map(_place, tensors)]
        self._versions = [*map(_version, tensors)] if self._counted else []
        dense = [_bytes(each) for each in tensors]
        self._parts = _parts(dense)  # own the storages, so that words can be read if an address is that of another now
        self._next = 0
        self._memory, self._places = _words(dense)
        self._words = self._memory[self._places].tobytes()

    def fits(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the same tensors, unchanged as far as this call can tell."""
        if not (
            all(map(operator.is_, tensors, self.tensors))
            and [*map(_place, tensors)] == self._addresses
            and (not self._counted or [*map(_version, tensors)] == self._versions)
            and self._memory[self._places].tobytes() == self._words  # in a third of the time of `==` and `all`
        ):
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


def _words(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Memory that holds all arrays, as words, and the position of one word of each array in it."""
    addresses = np.array([_word(each) for each in arrays if each.size >= 2 * _WORD], np.int64)
    if not addresses.size:
        return addresses, addresses
    base = int(addresses.min())
    count = (int(addresses.max()) - base) // _WORD + 1
    memory: np.ndarray = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(base))
    return memory, (addresses - base) // _WORD


def _word(array: np.ndarray) -> int:
    """Address of an aligned word that is not 0, so that a factor changes it; near the middle of an array."""
    first = -array.ctypes.data % _WORD
    words = array[first : first + (array.size - first) // _WORD * _WORD].view(np.int64)
    middle = len(words) // 2
    return words.ctypes.data + _WORD * (middle + int(np.argmax(words[middle : middle + _NEAR] != 0)))


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
