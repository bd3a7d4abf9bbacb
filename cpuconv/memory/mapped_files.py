"""Files mapped into memory, and arrays that are lent from them or from bytes that a caller holds.

What outlives the making of a program copies lent arrays (`own`), and their pages go back when they have been read
(`let_go`), to be read from the file again when other sizes need them. Lent arrays need not be aligned.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from autotune.files import open_regular
from autotune.machine.pages import Pages
from cpuconv.errors import SourceError
from cpuconv.memory.passing import is_passing


class Mapped(Pages):
    """A file in memory, page by page as it is read; it may be renamed or removed meanwhile.

    Attributes
    ----------
    name : str
        The path of the file when it was opened.
    """

    @classmethod
    def of(cls, file: BinaryIO, path: Path) -> Mapped:
        """Map a whole file, which may be closed then.

        Raises
        ------
        OSError, ValueError
            It is empty, or cannot be mapped.
        """
        status = os.fstat(file.fileno())
        if not status.st_size:
            raise ValueError("an empty file cannot be mapped")
        made = cls(file.fileno(), status.st_size)
        made.name, made._seen = os.path.abspath(path), _state(status)
        return made

    name: str
    _seen: tuple[int, int, int, int]

    @property
    def changed(self) -> bool:
        """Whether the file was written to since it was mapped.

        Of one that was removed, or whose name another file has taken, nobody tells.
        """
        try:
            now = _state(os.stat(self.name))
        except OSError:
            return False
        return now[:2] == self._seen[:2] and now != self._seen


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def contents(path: Path) -> memoryview:
    """A file's content: mapped, or read where that is impossible. No descriptor stays open.

    Raises
    ------
    OSError
        It is no regular file, cannot be read, or does not fit into memory.
    """
    with open_regular(path) as file:
        try:
            return np.asarray(Mapped.of(file, path)).data
        except (OSError, ValueError):
            pass
        try:
            return memoryview(file.read())
        except MemoryError as error:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error


# --- lent arrays ----------------------------------------------------------------------------------------------------


def lender(array: np.ndarray) -> bytes | Mapped | None:
    """The file or the bytes of a model that an array is a view of; None: others have its memory."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        under = base.obj if isinstance(base, memoryview) else base.base
        if under is None:
            break
        base = under
    return base if isinstance(base, (Mapped, bytes)) else None


def own(array: np.ndarray) -> np.ndarray:
    """The array, or a copy of a lent one, and of one that keeps others' memory."""
    return array if lender(array) is None and not is_passing(array) else np.array(array, order="C")


def let_go(arrays: Iterable[np.ndarray]) -> None:
    """Give back the memory that files of lent arrays take; they can still be read."""
    give_back(files_of(arrays))


def give_back(files: Iterable[Mapped]) -> None:
    """Give back the memory that files take; they can still be read."""
    for each in files:
        each.give_back()


def check_unchanged(arrays: Iterable[np.ndarray]) -> None:
    """See that the files of lent arrays are as they were.

    Raises
    ------
    SourceError
        One was written to.
    """
    for each in files_of(arrays):
        if each.changed:
            raise SourceError(f"The file {each.name!r} was changed since the model was read: compile it again.")


def files_of(arrays: Iterable[np.ndarray]) -> set[Mapped]:
    """The files that arrays are lent from."""
    return {found for array in arrays if isinstance(found := lender(array), Mapped)}
