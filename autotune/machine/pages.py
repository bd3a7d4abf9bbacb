"""Pages of memory by the system's own calls: files without a descriptor that stays open, and machine code.

Python's `mmap` keeps a duplicate of the descriptor for as long as the memory is mapped, and a process may have 1,024 of
them.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

_CODE = getattr(mmap, "PROT_READ", 0) | getattr(mmap, "PROT_EXEC", 0)
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10  # flags of memfd_create(2); the second one since Linux 6.3
_FAILED = ctypes.c_void_p(-1).value


class NoExecutableMemory(OSError):
    """The system lets this process have no memory that holds code, such as under a policy of SELinux."""


class Pages:
    """A file in memory, read page by page, until this object and all arrays of it are gone.

    It is an array for NumPy (`numpy.asarray`), of uint8, that cannot be written to.

    Parameters
    ----------
    handle : int
        Descriptor of the file, which may be closed at once.
    size : int
        Bytes, at least one.
    rights : int or None
        What the memory may be used for, as flags of `mmap`; None: to be read.

    Raises
    ------
    OSError
        The file cannot be mapped.
    """

    def __init__(self, handle: int, size: int, rights: int | None = None) -> None:
        system = _system()
        given = mmap.PROT_READ if rights is None else rights
        address = system.mmap(None, size, given, mmap.MAP_SHARED, handle, 0)
        if address in (None, _FAILED):
            raise _error("a file cannot be mapped into memory")
        self.address, self.size = int(address), size
        weakref.finalize(self, system.munmap, self.address, size).atexit = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.size,), "data": (self.address, True)}

    def give_back(self) -> None:
        """Give back the memory that was read; it is read from the file again when it is needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            _system().madvise(self.address, self.size, mmap.MADV_DONTNEED)


def place_code(size: int, content_at: Callable[[int], bytes | bytearray]) -> tuple[int, Any]:
    """Place machine code in memory, which is never writable and executable through one mapping.

    Memory is written, and then made executable. Where the system refuses that, as systemd does under
    MemoryDenyWriteExecute, the code is written to a file without a name that is mapped to be executed.

    Parameters
    ----------
    size : int
        Bytes.
    content_at : callable
        Gives the code for the address where it will begin.

    Returns
    -------
    address : int
    memory
        What the code is freed with.

    Raises
    ------
    NoExecutableMemory
        The system allows neither.
    """
    memory = mmap.mmap(
        -1,
        max(size, 1),
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
    )
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if may_gain_execution():
        memory[:size] = bytes(content_at(address))
        if _system().mprotect(address, len(memory), _CODE) == 0:
            return address, memory
    try:
        return _place_in_file(size, content_at)
    except (OSError, AttributeError) as error:
        raise NoExecutableMemory(f"this process may have no executable memory: {error}") from error


def _place_in_file(size: int, content_at: Callable[[int], bytes | bytearray]) -> tuple[int, Pages]:
    handle = _new_memory_file()
    try:
        os.ftruncate(handle, max(size, 1))
        pages = Pages(handle, max(size, 1), _CODE)
        content = memoryview(content_at(pages.address))
        done = 0
        while done < size:
            done += os.pwrite(handle, content[done:], done)
        return pages.address, pages
    finally:
        os.close(handle)


def _new_memory_file() -> int:
    """The descriptor of a file in memory whose content may be executed."""
    try:
        return os.memfd_create("cpuconv", _MFD_CLOEXEC | _MFD_EXEC)
    except OSError:  # before Linux 6.3
        return os.memfd_create("cpuconv", _MFD_CLOEXEC)


def may_gain_execution() -> bool:
    """Whether memory that was written may become executable, as compilers need. Linux alone is asked."""
    if sys.platform != "linux":
        return True
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return bool(_system().mprotect(address, mmap.PAGESIZE, _CODE) == 0)


@functools.cache
def _system() -> Any:
    """The C library's calls.

    Raises
    ------
    OSError
        This system has none of that name.
    """
    try:
        system = ctypes.CDLL(None, use_errno=True)
        word, number = ctypes.c_void_p, ctypes.c_int
        system.mmap.argtypes = [word, ctypes.c_size_t, number, number, number, ctypes.c_long]
        system.mmap.restype = word
        system.munmap.argtypes = [word, ctypes.c_size_t]
        system.mprotect.argtypes = system.madvise.argtypes = [word, ctypes.c_size_t, number]
    except (AttributeError, TypeError) as error:
        raise OSError(f"this system has no mmap(2): {error}") from error
    return system


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
