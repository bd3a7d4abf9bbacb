"""The kernel decorator: one ABI, `kernel(tile, worker, before, part, parts, args)`, reached by C address.

A kernel does one part (`part` of `parts`) of the work that `args` describes, in the workspace of `worker`, and returns
nothing. `before` is the last part of the same work that this worker did, -1 for none: its leftovers are still in the
workspace. Any worker may do any part, and no result depends on which one does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

from cpuconv.runtime.code.cache import Code, Entries, load_or_compile
from cpuconv.runtime.types import BlockType, TileType, tile_text

OPTIONS = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True}
inline = njit(no_cfunc_wrapper=True, forceinline=True, **OPTIONS)
"""Decorator of helpers that kernels call, always inlined: a call that is left checks a status, and the C entry then
keeps the code that raises exceptions, whose symbols may be missing where a kernel is loaded from disk."""


class Kernel:
    """A kernel driver with the names of its arguments; `entry(tile)` compiles or loads it for one tile."""

    def __init__(self, function: Callable[..., None], fields: tuple[str, ...]) -> None:
        self.module = function.__module__
        self.name = f"{self.module}.{function.__qualname__}"
        self.fields = fields
        self.block = BlockType(fields)
        self.__doc__ = inspect.getdoc(function)
        self._dispatcher = njit(**OPTIONS)(function)
        self._entries = Entries()

    def signature(self, tile: Any) -> tuple[Any, ...]:
        """Numba's argument types of this kernel for `tile`."""
        return TileType(tile), *[types.int64] * 4, self.block

    def entry(self, tile: Any) -> Code:
        """The kernel specialised for `tile` (compiled at most once per machine)."""
        return self._entries.get(tile, lambda: self._load(tile))

    def _load(self, tile: Any) -> Code:
        identity = f"{tile_text(tile)}\n{','.join(self.fields)}"
        compiled = functools.partial(compile_entry, self._dispatcher, self.signature(tile))
        return load_or_compile(self.name, self.module, identity, compiled)

    def assembly(self, tile: Any) -> str:
        """Assembly text of the specialisation, for tests on the machine code."""
        self._dispatcher.compile(self.signature(tile))
        return self._dispatcher.overloads[self.signature(tile)].library.get_asm_str()

    def pack(self, values: dict[str, int]) -> np.ndarray:
        """An int64 argument block from named words; every field must be given, and no other."""
        if values.keys() != set(self.fields):
            raise KeyError(f"{self.name}: {sorted(values.keys() ^ set(self.fields))}")
        return np.array([values[name] for name in self.fields], np.int64)


def compile_entry(dispatcher: Any, signature: tuple[Any, ...]) -> tuple[bytes, str, Code]:
    """Compile a dispatcher for `signature`; gives the object code, the name of the C entry, and the entry."""
    dispatcher.compile(signature)
    result = dispatcher.overloads[signature]
    symbol = result.fndesc.llvm_cfunc_wrapper_name
    address = result.library.get_pointer_to_function(symbol)
    return result.library._get_compiled_object(), symbol, Code(address, result.library)


def kernel(fields: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator: make a driver function a `Kernel` whose argument block has the (space-separated) `fields`."""
    return lambda function: Kernel(function, tuple(fields.split()))
