"""Compiled kernels on disk: one object file per (kernel, tile), stamped with all that its machine code depends on.

A kernel's file and folder are named by all of that (`runtime.kernel_files`), so a change of any of it compiles anew
instead of running stale code. Files hold machine code only: nothing is unpickled. They are written whole under a
checksum, and what others could have written is not loaded (`runtime.kept`). This module is no part of a stamp: whoever
changes what a file holds must change the folder's name.

In memory a function is freed with the last `Code` that names it, so that a process that meets ever more shapes does
not grow for ever: programs hold theirs, and the latest are kept for the next program.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.compiler_lock import lock as _lock
from cpuconv.runtime.code.kernel_files import KernelFile
from cpuconv.runtime.target import target_machine

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


_alive: weakref.WeakValueDictionary[tuple[str, str, str], Code] = weakref.WeakValueDictionary()


def load_or_compile(
    name: str, module: str, identity: str, compile_: Callable[[], Compiled], load: Load = load_object
) -> Code:
    """The kernel `name` of `module` specialised as `identity`: one object, whoever asks, as long as somebody keeps it.

    `compile_` gives (object code, symbol, function).
    """
    key = name, module, identity
    file = kernel_files.find(*key)
    with _lock:
        code = _alive.get(key) or _load(file, load)
        if code is not None:
            _alive[key] = code
            return code
    # Not under our own lock: another process may take its time, and threads load and fork meanwhile.
    with file.compiling(), _lock:
        code = _alive.get(key) or _load(file, load)
        if code is None:
            content, symbol, code = _in_one_piece(compile_)
            Statistics.compiled += 1
            file.write(symbol.encode() + b"\0" + content)
        _alive[key] = code
        return code


def _load(file: KernelFile, load: Load) -> Code | None:
    body = file.read()
    if body is None:
        return None  # compiled, and a file that was damaged or could have been another's is replaced
    symbol, _, code = body.partition(b"\0")
    loaded = load(code, symbol.decode())
    Statistics.loaded += 1
    return loaded
