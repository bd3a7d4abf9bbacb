"""Object files become functions by LLVM's linkers, where our own loader does not serve."""

from __future__ import annotations

import itertools

import llvmlite.binding as llvm
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from cpuconv.runtime.target import target_machine

_LINKED = 256  # files that a linker links


def by_engine(code: bytes, symbol: str) -> tuple[int, object]:
    """The function `symbol` of an object file's `code`, which may name symbols of Numba's, and what holds it."""
    if b"NRT_" in code:  # which are there once its runtime is compiled: 30 ms, and 30 MB of LLVM's in memory
        rtsys.initialize(cpu_target.target_context)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(symbol), engine


class _Linkers:
    """LLVM's linkers (ORC), which take a tenth of an engine's time for a file, a library each.

    A library leaves some KB behind in its linker, so that there is a new one now and then; it goes with the last
    function that it linked.
    """

    def __init__(self) -> None:
        self._linked = itertools.count()
        self._linker: llvm.LLJIT | None = None

    def load(self, code: bytes, symbol: str) -> tuple[int, object]:
        """The function `symbol` of an object file's `code`, which names symbols of the C library at most."""
        number = next(self._linked)
        if number % _LINKED == 0:
            self._linker = llvm.create_lljit_compiler(target_machine())
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
        linked = library.link(self._linker, f"cpuconv-{number}")
        return linked[symbol], (self._linker, linked)  # freed from the last to the first


by_linker = _Linkers().load
