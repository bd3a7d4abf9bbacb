"""Arrays against memory that nobody may touch: a kernel that reads or writes past one of their ends is stopped.

An array ends where a page begins that may not be touched, to the byte, or begins where such a page ends. What is left
of its own pages is filled, so that a kernel that uses it, or writes there, is seen at the other end too.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

END, START = "end", "start"
EDGES = (END, START)
CAN = os.name == "posix"
"""Whether memory can be guarded here; elsewhere arrays lie amid filled pages."""
_PAGE = mmap.PAGESIZE
_LEAST = 256  # bytes of the array's own pages around it, at least


def room(size: int, edge: str, fill: float = np.nan) -> np.ndarray:
    """`size` bytes at that edge, all of them and those around of floats of `fill`."""
    pages = -(-(size + _LEAST) // _PAGE)
    memory = mmap.mmap(-1, (pages + 2) * _PAGE)
    whole = np.frombuffer(memory, np.uint8)
    own = whole[_PAGE:-_PAGE]
    own.view(np.float32)[:] = fill
    if CAN:
        for guard in (whole[:_PAGE], whole[-_PAGE:]):
            _forbid(guard.ctypes.data)
    first = len(own) - size if edge == END else 0
    return own[first : first + size]


def pages(array: np.ndarray) -> np.ndarray:
    """The floats of an array's own pages, which are filled where it does not lie."""
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return whole[_PAGE:-_PAGE].view(np.float32)


def place(array: np.ndarray, edge: str, fill: float = np.nan) -> np.ndarray:
    """The same elements at that edge, by the same strides; what lies between them is copied too."""
    low, high = _extent(array)
    memory = room(high - low, edge, fill)
    if array.size:
        memory[:] = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
    placed: np.ndarray = np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)
    placed.flags.writeable = array.flags.writeable
    return placed


@contextlib.contextmanager
def only(*written: np.ndarray) -> Iterator[None]:
    """See that of the pages of these arrays, which were placed, nothing else is written to."""
    before = [(array, array.copy(), pages(array).tobytes()) for array in written]
    yield
    for array, blank, whole in before:
        result = array.copy()
        array[...] = blank
        assert pages(array).tobytes() == whole, "what lies around or between the elements was written to"
        array[...] = result


def _extent(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte, and of that behind the last."""
    first = array.ctypes.data
    if not array.size:
        return first, first
    ends = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    return first + sum(min(end, 0) for end in ends), first + sum(max(end, 0) for end in ends) + array.itemsize


def named(case: object, call: Callable[[], Any]) -> Any:
    """The result of a call. If it is stopped, the traceback of the process shows the case as a function's name."""
    name = " ".join(str(case).split())
    return types.FunctionType(_through.__code__.replace(co_name=name), {})(call)


def _through(call: Callable[[], Any]) -> Any:
    return call()


def _forbid(address: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if library.mprotect(address, _PAGE, 0):  # PROT_NONE
        raise OSError(ctypes.get_errno(), "mprotect")
