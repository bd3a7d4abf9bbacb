"""Memory-mapped files, and arrays borrowed from them or from a caller's bytes object.

Data that outlives the building of a program copies borrowed arrays (`owned_copy`). The pages of borrowed arrays are
released after reading (`release_pages`), and read from the file again when needed. Borrowed arrays need not be aligned.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from autotune.machine.pages import Pages
from baselib.files import open_regular
from cpuconv.errors import SourceError
from cpuconv.memory.temporary import is_temporary


class Mapped(Pages):
    """A memory-mapped file, loaded page by page as it is read; it may be renamed or removed meanwhile.

    Attributes
    ----------
    name : str
        The path of the file when it was opened.
    """

    @classmethod
    def of(cls, file: BinaryIO, path: Path) -> Mapped:
        """Map a whole file, which may be closed afterwards.

        Raises
        ------
        OSError, ValueError
            The file is empty, or cannot be mapped.
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

        False if unknown: the file was removed, or another file has taken its name.
        """
        try:
            now = _state(os.stat(self.name))
        except OSError:
            return False
        return now[:2] == self._seen[:2] and now != self._seen


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def contents(path: Path) -> memoryview:
    """Content of a file: mapped, or read if that is impossible. No descriptor stays open.

    Raises
    ------
    OSError
        It is not a regular file, cannot be read, or does not fit into memory.
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


# --- borrowed arrays ------------------------------------------------------------------------------------------------


def backing(array: np.ndarray) -> bytes | Mapped | None:
    """The file or the bytes object of a model that an array is a view of; None if there is none."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        under = base.obj if isinstance(base, memoryview) else base.base
        if under is None:
            break
        base = under
    return base if isinstance(base, (Mapped, bytes)) else None


def owned_copy(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy if it is borrowed or shares a chunk with other arrays."""
    return array if backing(array) is None and not is_temporary(array) else np.array(array, order="C")


def release_pages(arrays: Iterable[np.ndarray]) -> None:
    """Release the pages of the files that arrays are borrowed from; they remain readable."""
    release_files(files_of(arrays))


def release_files(files: Iterable[Mapped]) -> None:
    """Release the memory pages of files; they remain readable."""
    for each in files:
        each.give_back()


def check_unchanged(arrays: Iterable[np.ndarray]) -> None:
    """Check that the files of borrowed arrays have not changed.

    Raises
    ------
    SourceError
        A file was written to.
    """
    for each in files_of(arrays):
        if each.changed:
            raise SourceError(f"The file {each.name!r} was changed since the model was read: compile it again.")


def files_of(arrays: Iterable[np.ndarray]) -> set[Mapped]:
    """The files that arrays are borrowed from."""
    return {found for array in arrays if isinstance(found := backing(array), Mapped)}
