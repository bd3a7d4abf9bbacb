"""State of tensors, read from PyTorch's objects in memory without a Python call per tensor.

The state is where a tensor's elements are, its version, and its strides. Offsets of these words in PyTorch's structures
are found by a trial; if it fails, attributes are read instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

_START, _END = 1 << 12, 1 << 52  # addresses; the first page is never mapped
_WORD = 8  # bytes
_IMPL_WORDS, _OTHER_WORDS = 22, 4  # words of a TensorImpl, and of the other structures, that the trial looks at
MEMORY: np.ndarray = np.ctypeslib.as_array((ctypes.c_int64 * ((_END - _START) // _WORD)).from_address(_START))
MEMORY.flags.writeable = False


class Offsets(NamedTuple):
    """Offsets in words: of a tensor's structure in its Python object, and of words in the structures.

    Attributes
    ----------
    impl : int
        Of the address of the TensorImpl in the Python object.
    storage, version : int
        Of the addresses of the storage and of the version counter, in the TensorImpl.
    geometry : tuple[int, ...]
        Of sizes, strides and offset, in the TensorImpl.
    data : int
        Of the address of the elements, in the storage.
    counter : int
        Of the version, in the version counter.
    """

    impl: int
    storage: int
    version: int
    geometry: tuple[int, ...]
    data: int
    counter: int


def place(address: int) -> int:
    """Position in `MEMORY` of the word at an address."""
    return (address - _START) // _WORD


def _words(address: int, count: int) -> list[int]:
    return [*map(int, MEMORY[place(address) :][:count])]


def _found() -> Offsets | None:
    """Offsets in this version of PyTorch; None if a trial does not find them."""
    sizes, strides, offset = (1, 3, 7, 2, 5), (1009, 211, 29, 13, 2), 577
    tensor = torch.zeros(4000).as_strided(sizes, strides, offset)
    storage = tensor.untyped_storage()
    try:
        impl = _words(tensor._cdata, _IMPL_WORDS)
        shared, apart = (_words(each._cdata, _IMPL_WORDS) for each in (tensor.detach(), tensor.data))
        (version,) = (at for at, word in enumerate(impl) if word == shared[at] != apart[at])
        for _ in range(57):
            tensor.zero_()
        counter = [word & 0xFFFFFFFF for word in _words(impl[version], _OTHER_WORDS - 1)]  # 32 bits, then padding
        first = next(at for at in range(_IMPL_WORDS) if impl[at : at + 5] == [*sizes])
        geometry = (*range(first, first + 10), impl.index(offset))
        if impl[first + 5 : first + 10] != [*strides]:
            return None
        return Offsets(
            _words(id(tensor), torch.Tensor.__basicsize__ // _WORD).index(tensor._cdata),
            impl.index(storage._cdata), version, geometry,
            _words(storage._cdata, _OTHER_WORDS).index(storage.data_ptr()), counter.index(tensor._version),
        )  # fmt: skip
    except (AttributeError, StopIteration, ValueError):
        return None


OFFSETS = _found()


class State:
    """Where the elements of some tensors are, their sizes and strides, and their versions.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Tensors in CPU memory, which must stay alive.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._words: list[tuple[np.ndarray, bytes]] = []
        self._attributes: list[object] | None = None
        if OFFSETS is None or any(map(torch.is_inference, tensors)):  # inference tensors have no version counter
            self._attributes = self._read()
            return
        found = OFFSETS
        (impl,) = self._record(np.array([id(each) for each in tensors], np.int64), found.impl)
        storages, counters, *_ = self._record(impl, found.storage, found.version, *found.geometry)
        self._record(np.concatenate([storages + found.data * _WORD, counters + found.counter * _WORD]), 0)

    def _record(self, addresses: np.ndarray, *offsets: int) -> np.ndarray:
        """Read words of structures at these addresses, which words that were recorded before name."""
        return self.record((addresses + np.array(offsets)[:, None] * _WORD - _START) // _WORD)

    def record(self, places: np.ndarray) -> np.ndarray:
        """Read more words of `MEMORY`, which are valid as long as the state is unchanged."""
        words = MEMORY[places]
        self._words.append((places, words.tobytes()))
        return words

    def unchanged(self) -> bool:
        """Whether the state is what it was."""
        if self._attributes is not None and self._attributes != self._read():
            return False
        return all(MEMORY[at].tobytes() == words for at, words in self._words)  # in order: addresses are still valid

    def _read(self) -> list[object]:
        """The state as attributes."""
        return [(each.data_ptr(), each.shape, each.stride(), 0 if each.is_inference() else each._version)
                for each in self._tensors]  # fmt: skip
