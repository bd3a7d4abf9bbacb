"""LLVM's linkers, for object files that our own loader does not support."""

from __future__ import annotations

import itertools

import llvmlite.binding as llvm
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from cpuconv.runtime.target import target_machine

_LINKED = 256  # files per linker


def by_engine(code: bytes, symbol: str) -> tuple[int, object]:
    """Return the address of `symbol` in an object file, which may refer to Numba's symbols, and the owner."""
    if b"NRT_" in code:  # defined once Numba's runtime is compiled, which takes 30 ms and 30 MB of memory in LLVM
        rtsys.initialize(cpu_target.target_context)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(symbol), engine


class _Linkers:
    """LLVM's ORC linkers, which take a tenth of MCJIT's time per file, one library per file.

    A library leaves some KB in its linker, so a new linker replaces it every `_LINKED` files. A linker is freed with
    the last function that it linked.
    """

    def __init__(self) -> None:
        self._linked = itertools.count()
        self._linker: llvm.LLJIT | None = None

    def load(self, code: bytes, symbol: str) -> tuple[int, object]:
        """Return the address of `symbol` in an object file that refers at most to the C library, and the owner."""
        number = next(self._linked)
        if number % _LINKED == 0:
            self._linker = llvm.create_lljit_compiler(target_machine())
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
        linked = library.link(self._linker, f"cpuconv-{number}")
        return linked[symbol], (self._linker, linked)  # freed in reverse order


by_linker = _Linkers().load
