"""Object files become functions in memory of this process, by a loader of our own: no LLVM is imported or started.

Memory is written first and then made executable; it is never both. What the loader does not know, such as the object
files of other systems, LLVM's loads (`llvm_loader`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import platform
import sys
from typing import Any

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
        A whole linker is needed, the file is another system's, or this system does not let memory become executable.
    """
    image = object_file.read(content)
    if image.machine != _own():
        raise Unsupported(f"code of architecture {image.machine}")
    start = image.offset(symbol)
    known = {name: _address(name) for name in image.names}
    return _placed(image, start, known)


def _placed(image: Image, start: int, known: dict[str, int]) -> tuple[int, mmap.mmap]:
    memory = mmap.mmap(
        -1,
        max(image.size, 1),
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
    )
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[: image.size] = bytes(image.at(address, known))
    _make_executable(address, len(memory))
    return address + start, memory


def _make_executable(address: int, size: int) -> None:
    system = _libraries()[0]
    if clear := _clear_cache():
        clear(ctypes.c_void_p(address), ctypes.c_void_p(address + size))
    if system.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise Unsupported("memory of this process cannot be made executable")


@functools.cache
def _own() -> int:
    """ELF's number of this process's architecture; 0 where objects are no ELF files."""
    return _MACHINES.get(platform.machine(), 0) if sys.platform == "linux" and sys.maxsize > 1 << 32 else 0


@functools.cache
def _clear_cache() -> Any:
    """What makes Arm's caches of instructions see what was written; Linux does so too, as pages become executable."""
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
