"""Compiled kernels on disk: one object file per (kernel, tile), stamped with all that its machine code depends on.

A kernel's name covers the sources that it is made from (`runtime.stamp`), its folder the versions of Numba and
llvmlite and the target CPU with its features, so a change of any of them compiles anew instead of running stale code.
Files hold machine code only: nothing is unpickled. They are written whole under a checksum, and what others could have
written is not loaded (`runtime.kept`). This module is no part of a stamp: whoever changes what a file holds must change
the folder's name.

In memory a function is freed with the last `Code` that names it, so that a process that meets ever more shapes does
not grow for ever: programs hold theirs, and the latest are kept for the next program.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import re
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from autotune.paths import cache_folder
from cpuconv.errors import CpuconvWarning
from cpuconv.runtime import kept, ownership
from cpuconv.runtime.compiler_lock import lock as _lock
from cpuconv.runtime.stamp import stamp
from cpuconv.runtime.target import target, target_machine

LOCK_SECONDS = 120  # a compile takes about a second; a lock held longer belongs to a stuck process
KEPT = 1024  # functions that are kept though no program holds them, some 50 KB each
_LINKED = 256  # files that a linker links


class Code:
    """A compiled function, which may be called as long as this object lives.

    Nobody reads its address alone: it is given to what keeps the object alive, or as a C function that does.

    Parameters
    ----------
    address : int
    holds : object
        What the machine code is freed with.
    """

    __slots__ = ("__weakref__", "_address", "_holds")

    def __init__(self, address: int, holds: Any) -> None:
        self._address, self._holds = address, holds

    def address_for(self, keeper: list[Any]) -> int:
        """The address, which may be called as long as `keeper` is kept; this object is put into it."""
        keeper.append(self)
        return self._address

    def function(self, prototype: Any) -> Any:
        """A C function of that type (`ctypes.CFUNCTYPE`), which keeps this object."""
        function = prototype(self._address)
        function.code = self
        return function


class Entries:
    """The functions of one kernel by its tile."""

    _latest: collections.deque[Code] = collections.deque(maxlen=KEPT)  # of all kernels

    def __init__(self) -> None:
        self._found: weakref.WeakValueDictionary[Any, Code] = weakref.WeakValueDictionary()

    def get(self, tile: Any, load: Callable[[], Code]) -> Code:
        """The function for `tile`, by `load` if it is not in memory."""
        code = self._found.get(tile)
        if code is None:  # for two threads at once too: they are given one function
            code = self._found[tile] = load()
            self._latest.append(code)
        return code


class Statistics:
    """Counts of this process: kernels compiled, and kernels loaded from disk."""

    compiled = 0
    loaded = 0


@functools.lru_cache(maxsize=1)
def folder() -> tuple[Path | None, bool]:
    """Where kernels of this target are kept, and whether new ones can be written there (one warning if not).

    None if others may write to the folder, or to one of those around it that are made here: it is not used at all.
    """
    versions = "\n".join((repr(target()), numba.__version__, llvmlite.__version__))
    kernels = cache_folder() / "kernels"
    place = kernels / hashlib.sha256(versions.encode()).hexdigest()[:16]
    usable: Path | None = place
    try:
        trouble = ownership.claim(kernels.parent, kernels, place)
        if trouble is None:
            with tempfile.TemporaryFile(dir=place):
                return place, True
        usable = None
    except OSError as error:
        trouble = str(error)
    warnings.warn(f"kernels are not cached on disk: {trouble}", CpuconvWarning, stacklevel=2)
    return usable, False


Load = Callable[[bytes, str], Code]
Compiled = tuple[bytes, str, Code]  # object code, symbol, function
"""From an object file's code and the name of its function to that function."""


def load_object(code: bytes, symbol: str) -> Code:
    """The function `symbol` of an object file's `code`, which may name symbols of Numba's."""
    if b"NRT_" in code:  # which are there once its runtime is compiled: 30 ms, and 30 MB of LLVM's in memory
        rtsys.initialize(cpu_target.target_context)
    with _lock:  # an engine a file: all call their function by the same name
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return Code(engine.get_function_address(symbol), engine)


class _Linkers:
    """LLVM's linkers (ORC), which take a tenth of an engine's time for a file, a library each.

    A library leaves some KB behind in its linker, so that there is a new one now and then; it goes with the last
    function that it linked.
    """

    def __init__(self) -> None:
        self._linked = itertools.count()
        self._linker: llvm.LLJIT | None = None

    def load(self, code: bytes, symbol: str) -> Code:
        """The function `symbol` of an object file's `code`, which names symbols of the C library at most."""
        with _lock:
            number = next(self._linked)
            if number % _LINKED == 0:
                self._linker = llvm.create_lljit_compiler(target_machine())
            library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
            linked = library.link(self._linker, f"cpuconv-{number}")
            return Code(linked[symbol], (self._linker, linked))  # freed from the last to the first


link_object: Load = _Linkers().load


def _in_one_piece(call: Callable[[], Compiled]) -> Compiled:
    """The result of a call that has room for a thousand frames of the interpreter in one piece.

    CPython maps memory for frames in chunks of 16 KiB, and maps and unmaps the next one at every call that passes the
    end of a chunk. Numba's passes sit on such an end for ten thousands of calls, up to half the time of a compilation.
    A frame that asks for a large stack is given a large chunk, in which those of its callees lie.
    """
    return call()


_in_one_piece.__code__ = _in_one_piece.__code__.replace(
    co_stacksize=2**16
)  # in words: a chunk of 1 MiB, half of it left


_alive: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()  # by their files' names


def load_or_compile(
    name: str, module: str, identity: str, compile_: Callable[[], Compiled], load: Load = load_object
) -> Code:
    """The kernel `name` of `module` specialised as `identity`: one object, whoever asks, as long as somebody keeps it.

    `compile_` gives (object code, symbol, function).
    """
    digest = hashlib.sha256("\n".join((name, stamp(module), identity)).encode()).hexdigest()[:20]
    file = f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{digest}.o"
    with _lock:
        place, writable = folder()
        code = _alive.get(file)
        if code is None and place is not None:
            code = _load(place / file, load)
        if code is None and not writable:
            code = _compile(compile_)[2]
        if code is not None:
            _alive[file] = code
            return code
        from filelock import BaseFileLock, FileLock, Timeout  # costs 0.15 s to import, needed only to compile
    assert place is not None
    guard: BaseFileLock | None = None
    try:  # not under our own lock: another process may take its time, and threads load and fork meanwhile
        guard = FileLock(f"{place / file}.lock")
        guard.acquire(timeout=LOCK_SECONDS)
    except (Timeout, OSError):
        guard = None  # compile for ourselves: slower, never wrong
    try:
        with _lock:
            code = _alive.get(file) or _load(place / file, load)
            if code is None:
                content, symbol, code = _compile(compile_)
                _store(place / file, content, symbol)
            _alive[file] = code
            return code
    finally:
        if guard is not None:
            guard.release()


def _compile(compile_: Callable[[], Compiled]) -> Compiled:
    made = _in_one_piece(compile_)
    Statistics.compiled += 1
    return made


def _load(path: Path, load: Load) -> Code | None:
    body = kept.read(path)
    if body is None:
        return None  # compiled, and a file that was damaged or could have been another's is replaced
    symbol, _, code = body.partition(b"\0")
    loaded = load(code, symbol.decode())
    Statistics.loaded += 1
    return loaded


def _store(path: Path, code: bytes, symbol: str) -> None:
    try:
        kept.write(path, symbol.encode() + b"\0" + code)
    except OSError as error:
        warnings.warn(f"kernel {path.name} is not cached on disk: {error}", CpuconvWarning, stacklevel=2)
