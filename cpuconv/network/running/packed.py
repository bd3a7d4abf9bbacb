"""Packed constants, shared by the programs of a model and by the models of a process."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.conv import session
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.memory.large_pages import Pool
from cpuconv.memory.mapped_files import backing, owned_copy

_of_process: weakref.WeakValueDictionary[tuple[tuple[str, bytes], Any], np.ndarray] = weakref.WeakValueDictionary()
"""Packed constants of all models: two sessions of one file have one copy. Never iterated, so it needs no lock."""
OF_TRIES = 1 << 29
"""Bytes that are retained between variants of a network, as these read nearly the same constants."""


class Packed:
    """Packed constants by content and form; programs that read equal ones in one form share them.

    Names do not identify constants, as rewrites for other sizes may reuse a name for other elements. An array exists as
    long as a program reads it, of any model. Only one thread at a time may add constants; programs may be dropped
    meanwhile.

    Parameters
    ----------
    saved : callable or None
        Returns a constant in a form from a saved model's file, or None.
    keeps : int
        Bytes of constants that are retained without a program, for programs that are built one after another.

    Attributes
    ----------
    pool : Pool
        Memory of constants; those packed one after another, in the order of operators, are adjacent.
    """

    def __init__(self, saved: Callable[[np.ndarray, Any], np.ndarray | None] | None = None, keeps: int = 0) -> None:
        self._saved, self._keeps = saved, keeps
        self._kept: list[np.ndarray] = []
        self.pool = Pool()
        self._arrays: weakref.WeakValueDictionary[tuple[tuple[str, bytes], Any], np.ndarray] = (
            weakref.WeakValueDictionary()
        )
        self._lent: dict[int, tuple[weakref.ref[np.ndarray], tuple[str, bytes]]] = {}  # content keys by identity

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def arrays(self) -> list[np.ndarray]:
        """The packed constants of these programs."""
        return [*self._arrays.values()]

    def get(self, array: np.ndarray, form: Any, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return a constant in a packed form: an existing equal one, or the result of `make`.

        Parameters
        ----------
        array : numpy.ndarray
            The constant.
        form : hashable
            All else that the result depends on.
        make : callable
        """
        found = None if self._saved is None else self._saved(array, form)
        if found is not None:
            return found
        key = self._content(array), form
        made = self._arrays.get(key)
        if made is None:
            made = _of_process.get(key)
            if made is None:
                made = _of_process[key] = owned_copy(make())
            self._arrays[key] = made
            if made.nbytes <= self._keeps:
                self._keeps -= made.nbytes
                self._kept.append(made)
        return made

    def forms(self, array: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        """The forms in which a constant is packed, with the packed arrays."""
        content = self._content(array)
        return [(form, made) for (name, form), made in self._arrays.items() if name == content]

    def _content(self, array: np.ndarray) -> tuple[str, bytes]:
        """A key of an array's content; arrays in a model's file are read only once for it."""
        if backing(array) is None or array.flags.writeable:
            return _content(array)
        known = self._lent.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        name, lent = id(array), self._lent
        lent[name] = weakref.ref(array, lambda _: lent.pop(name, None)), _content(array)
        return lent[name][1]


def _content(array: np.ndarray) -> tuple[str, bytes]:
    """A key of an array's content."""
    if array.dtype == FLOAT32:
        return array.dtype.str, session.current.fingerprint(array)
    return f"{array.dtype.str}{array.shape}", hashlib.sha256(array.tobytes()).digest()
