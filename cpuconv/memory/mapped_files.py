"""Files mapped into memory, and arrays that are lent from them or from bytes that a caller holds.

What outlives the making of a program copies lent arrays (`own`), and their pages go back when they have been read
(`let_go`), to be read from the file again when other sizes need them. Lent arrays need not be aligned.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.memory.passing import is_passing

Data = bytes | mmap.mmap


class Mapped(mmap.mmap):
    """A file in memory, page by page as it is read. The file stays open, so that it may be renamed or removed."""

    _file: BinaryIO
    _seen: tuple[int, int]

    @classmethod
    def of(cls, file: BinaryIO) -> Mapped:
        """Map a whole file.

        Raises
        ------
        OSError, ValueError
            It is empty, or cannot be mapped.
        """
        made = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
        made._file = file
        made._seen = made._state()
        return made

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    @property
    def name(self) -> str:
        """The path of the file when it was opened."""
        return str(self._file.name)

    @property
    def changed(self) -> bool:
        """Whether the file was written to since it was mapped."""
        return self._state() != self._seen

    def _state(self) -> tuple[int, int]:
        now = os.fstat(self._file.fileno())
        return now.st_size, now.st_mtime_ns


def contents(path: Path) -> Data:
    """A file's content: mapped, or read where that is impossible.

    Raises
    ------
    OSError
        It cannot be read, or does not fit into memory.
    """
    file = path.open("rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        try:
            return Mapped.of(file)
        except (OSError, ValueError):
            pass
    with file:
        try:
            return file.read()
        except MemoryError as error:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error


# --- lent arrays ----------------------------------------------------------------------------------------------------


def lender(array: np.ndarray) -> Data | None:
    """The file or the bytes of a model that an array is a view of; None: others have its memory."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, (Mapped, bytes)) else None


def own(array: np.ndarray) -> np.ndarray:
    """The array, or a copy of a lent one, and of one that keeps others' memory."""
    return array if lender(array) is None and not is_passing(array) else np.array(array, order="C")


def let_go(arrays: Iterable[np.ndarray]) -> None:
    """Give back the memory that files of lent arrays take; they can still be read."""
    give_back(files_of(arrays))


def give_back(files: Iterable[Mapped]) -> None:
    """Give back the memory that files take; they can still be read."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for each in files:
            each.madvise(mmap.MADV_DONTNEED)


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
