"""Object files become functions in memory of this process, by a loader of our own: no LLVM is imported or started.

Memory is never writable and executable at once (`autotune.machine.pages`). What the loader does not know, such as the
object files of other systems, LLVM's loads (`llvm_loader`).
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
"""Of Numba's own library, for what raises: where a driver's C entry names them, that code is never reached, as drivers
call nothing that raises. Should it be, the process stops."""


class Missing(Unsupported):
    """No library of this process has a symbol."""


def load(content: bytes, symbol: str) -> tuple[int, Any]:
    """The function `symbol` of an object file.

    Returns
    -------
    address : int
    memory
        What the function lies in; it may be called as long as this is kept.

    Raises
    ------
    Malformed
        The file is damaged.
    Unsupported
        A whole linker is needed, or the file is another system's.
    NoExecutableMemory
        This process may not have any.
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
    """ELF's number of this process's architecture; 0 where objects are no ELF files."""
    return _MACHINES.get(platform.machine(), 0) if sys.platform == "linux" and sys.maxsize > 1 << 32 else 0


@functools.cache
def _clear_cache() -> Any:
    """What makes Arm's caches of instructions see what was written."""
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
