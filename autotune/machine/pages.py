"""Memory mappings by system calls: mapped files without an open descriptor, and machine code.

Python's `mmap` keeps a duplicate of the descriptor open while the memory is mapped, and a process may have only 1,024
descriptors.
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
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10  # flags of memfd_create(2); MFD_EXEC since Linux 6.3
_FAILED = ctypes.c_void_p(-1).value


class NoExecutableMemory(OSError):
    """The system denies this process executable memory, for instance by a policy of SELinux."""


class Pages:
    """A mapped file, which is read page by page; mapped until this object and all arrays of it are deleted.

    NumPy sees it as a read-only array of uint8 (`numpy.asarray`).

    Parameters
    ----------
    handle : int
        Descriptor of the file, which may be closed after this.
    size : int
        Size in bytes, at least 1.
    rights : int or None
        Protection flags of `mmap`; None: read-only.

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
        """Release the physical memory; pages are read from the file again on access."""
        if hasattr(mmap, "MADV_DONTNEED"):
            _system().madvise(self.address, self.size, mmap.MADV_DONTNEED)


def place_code(size: int, content_at: Callable[[int], bytes | bytearray]) -> tuple[int, Any]:
    """Place machine code in executable memory; no mapping is both writable and executable at any time.

    Memory is written, then made executable. Where the system forbids that, as systemd does with
    MemoryDenyWriteExecute, the code is written to an anonymous file, which is mapped as executable.

    Parameters
    ----------
    size : int
        Size in bytes.
    content_at : callable
        Returns the code for its start address.

    Returns
    -------
    address : int
    memory
        The owner of the code's memory.

    Raises
    ------
    NoExecutableMemory
        The system allows neither method.
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
    """Return the descriptor of an anonymous file whose content may be executed."""
    try:
        return os.memfd_create("cpuconv", _MFD_CLOEXEC | _MFD_EXEC)
    except OSError:  # before Linux 6.3
        return os.memfd_create("cpuconv", _MFD_CLOEXEC)


def may_gain_execution() -> bool:
    """Whether written memory may become executable, as compilers need. Only tested on Linux."""
    if sys.platform != "linux":
        return True
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return bool(_system().mprotect(address, mmap.PAGESIZE, _CODE) == 0)


@functools.cache
def _system() -> Any:
    """Return the C library with its argument types.

    Raises
    ------
    OSError
        This system has no such functions.
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
