"""Packed constants, shared by the programs of a model."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv import session
from cpuconv.graph.place import FLOAT32
from cpuconv.memory.pages import Pool


class Packed:
    """Constants by content and form: programs that read equal ones in one form share them.

    Names do not tell constants apart: rewrites for other sizes may give one name to other elements. An array lives as
    long as a program reads it. To be filled by one thread at a time; programs may be forgotten meanwhile.

    Attributes
    ----------
    pool : Pool
        Memory for constants, in which those that are packed one after another, as operators run, lie side by side.
    """

    def __init__(self) -> None:
        self.pool = Pool()
        self._arrays: weakref.WeakValueDictionary[tuple[tuple[str, bytes], Any], np.ndarray] = (
            weakref.WeakValueDictionary()
        )

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
        key = _content(array), form
        made = self._arrays.get(key)
        if made is None:
            made = self._arrays[key] = make()
        return made


def _content(array: np.ndarray) -> tuple[str, bytes]:
    """What tells the elements of an array from others."""
    if array.dtype == FLOAT32:
        return array.dtype.str, session.current.fingerprint(array)
    return f"{array.dtype.str}{array.shape}", hashlib.sha256(array.tobytes()).digest()
