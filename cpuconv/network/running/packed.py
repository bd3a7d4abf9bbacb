"""Packed constants, shared by the programs of a model."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.conv import session
from cpuconv.kernels.binding.place import FLOAT32
from cpuconv.memory.large_pages import Pool
from cpuconv.memory.mapped_files import lender, own

OF_TRIES = 1 << 29
"""Bytes that stay from one variant of a network to the next, which reads nearly all of the same constants."""


class Packed:
    """Constants by content and form: programs that read equal ones in one form share them.

    Names do not tell constants apart: rewrites for other sizes may give one name to other elements. An array lives as
    long as a program reads it. To be filled by one thread at a time; programs may be forgotten meanwhile.

    Parameters
    ----------
    saved : callable or None
        What a file has of a constant in a form, or None.
    keeps : int
        Bytes of constants that stay when no program reads them: for programs that are made one after another.

    Attributes
    ----------
    pool : Pool
        Memory for constants, in which those that are packed one after another, as operators run, lie side by side.
    """

    def __init__(self, saved: Callable[[np.ndarray, Any], np.ndarray | None] | None = None, keeps: int = 0) -> None:
        self._saved, self._keeps = saved, keeps
        self._kept: list[np.ndarray] = []
        self.pool = Pool()
        self._arrays: weakref.WeakValueDictionary[tuple[tuple[str, bytes], Any], np.ndarray] = (
            weakref.WeakValueDictionary()
        )
        self._lent: dict[int, tuple[weakref.ref[np.ndarray], tuple[str, bytes]]] = {}  # contents by identity

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, array: np.ndarray, form: Any, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What `make` packs of a constant in a form; if a program has the same already, that.

        Parameters
        ----------
        array : numpy.ndarray
            The constant.
        form : hashable
            Whatever else the result depends on.
        make : callable
        """
        found = None if self._saved is None else self._saved(array, form)
        if found is not None:
            return found
        key = self._content(array), form
        made = self._arrays.get(key)
        if made is None:
            made = self._arrays[key] = own(make())
            if made.nbytes <= self._keeps:
                self._keeps -= made.nbytes
                self._kept.append(made)
        return made

    def forms(self, array: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        """The forms that a constant is packed in, each with what it is packed to."""
        content = self._content(array)
        return [(form, made) for (name, form), made in self._arrays.items() if name == content]

    def _content(self, array: np.ndarray) -> tuple[str, bytes]:
        """What tells the elements of an array from others; of those that lie in a model's file, read once."""
        if lender(array) is None or array.flags.writeable:
            return _content(array)
        known = self._lent.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        name, lent = id(array), self._lent
        lent[name] = weakref.ref(array, lambda _: lent.pop(name, None)), _content(array)
        return lent[name][1]


def _content(array: np.ndarray) -> tuple[str, bytes]:
    """What tells the elements of an array from others."""
    if array.dtype == FLOAT32:
        return array.dtype.str, session.current.fingerprint(array)
    return f"{array.dtype.str}{array.shape}", hashlib.sha256(array.tobytes()).digest()
