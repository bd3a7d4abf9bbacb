"""Our own loader of object files into this process: it neither imports nor starts LLVM.

Memory is never writable and executable at the same time (`autotune.machine.pages`). LLVM loads the files that this
loader does not support, such as those of other systems (`llvm_loader`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import sys
from typing import Any

from autotune.machine.pages import place_code
from cpuconv.runtime.code.loading import object_file
from cpuconv.runtime.code.loading.object_file import ARM, X86, Image, Unsupported

_MACHINES = {"x86_64": X86, "aarch64": ARM}
_NEVER_CALLED = ("numba_gil_ensure", "numba_gil_release")
"""Functions of Numba's own library for raising exceptions. A driver's C entry refers to them, but never calls them, as
drivers call nothing that raises. A call would abort the process."""


class Missing(Unsupported):
    """No library of this process defines a symbol."""


def load(content: bytes, symbol: str) -> tuple[int, Any]:
    """Load the function `symbol` of an object file.

    Returns
    -------
    address : int
    memory
        The function's memory; the address is valid while it exists.

    Raises
    ------
    Malformed
        The file is damaged.
    Unsupported
        A full linker is needed, or the file is for another system.
    NoExecutableMemory
        The system denies this process executable memory.
    """
    image = object_file.read(content)
    if image.machine != _own():
        raise Unsupported(f"code of architecture {image.machine}")
    start = image.offset(symbol)
    known = {name: _address(name) for name in image.names}
    return _placed(image, start, known)


def _placed(image: Image, start: int, known: dict[str, int]) -> tuple[int, Any]:
    address, memory = place_code(image.size, lambda address: image.at(address, known))
    if clear := _clear_cache():
        clear(ctypes.c_void_p(address), ctypes.c_void_p(address + image.size))
    return address + start, memory


@functools.cache
def _own() -> int:
    """Return ELF's number of this process's architecture; 0 where object files are not ELF."""
    return _MACHINES.get(platform.machine(), 0) if sys.platform == "linux" and sys.maxsize > 1 << 32 else 0


@functools.cache
def _clear_cache() -> Any:
    """Return the function that makes Arm's instruction caches see written code; None on other CPUs."""
    if _own() != ARM:
        return None
    try:
        return ctypes.CDLL("libgcc_s.so.1").__clear_cache
    except (OSError, AttributeError):
        return None


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    found: list[ctypes.CDLL] = [ctypes.CDLL(None), ctypes.pythonapi]
    with contextlib.suppress(OSError):
        found.append(ctypes.CDLL("libm.so.6"))
    return tuple(found)


@functools.cache
def _address(name: str) -> int:
    for library in _libraries():
        try:
            function = getattr(library, "abort" if name in _NEVER_CALLED else name)
        except AttributeError:
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise Missing(f"no library has {name!r}")
