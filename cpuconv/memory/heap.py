"""Reuse of freed memory by glibc's malloc, which NumPy's arrays come from."""

from __future__ import annotations

import ctypes

_MAX_THRESHOLD = 32 << 20  # glibc's upper bound of the threshold, on 64-bit systems, in bytes
_CHUNK = _MAX_THRESHOLD - (1 << 16)  # with its header and rounding to pages, below the bound


def reuse_large_blocks() -> None:
    """Let malloc reuse freed blocks below 32 MiB, instead of returning them to the kernel.

    malloc maps each block above a threshold anew, and its pages fault when they are first written to. If a mapped block
    is freed, the threshold rises to its size, up to 32 MiB, and the memory kept in the heap to twice that (dynamic mmap
    threshold, mallopt(3)). Here a block is mapped and freed that is never written to. There is no effect with other C
    libraries, or where the environment sets the thresholds.
    """
    try:
        library = ctypes.CDLL(None)
        malloc, free = library.malloc, library.free
    except (AttributeError, OSError, TypeError):  # not a POSIX system
        return
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    free(malloc(_CHUNK))
