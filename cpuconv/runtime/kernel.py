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

from autotune.locks import lazy
from cpuconv.runtime.code.cache import Code, Compiled, Entries, load_or_compile
from cpuconv.runtime.code.llvm import imported
from cpuconv.runtime.described import OPTIONS, inline
from cpuconv.runtime.tiles import tile_text

__all__ = ["Kernel", "code_of", "inline", "kernel"]


class Kernel:
    """A kernel driver with the names of its arguments; `entry(tile)` compiles or loads it for one tile."""

    def __init__(self, function: Callable[..., None], fields: tuple[str, ...]) -> None:
        self.module = function.__module__
        self.name = f"{self.module}.{function.__qualname__}"
        self.fields = fields
        self.__doc__ = inspect.getdoc(function)
        self._function = function
        self._entries = Entries()

    def signature(self, tile: Any) -> tuple[Any, ...]:
        """Numba's argument types of this kernel for `tile`."""
        from numba import types

        from cpuconv.runtime.numba_types import BlockType, TileType

        return TileType(tile), *[types.int64] * 4, BlockType(self.fields)

    @lazy
    def dispatcher(self) -> Any:
        """The driver as Numba compiles it."""
        return _dispatcher(self._function)

    def entry(self, tile: Any) -> Code:
        """The kernel specialised for `tile` (compiled at most once per machine)."""
        return self._entries.get(tile, lambda: self._load(tile))

    def _load(self, tile: Any) -> Code:
        identity = f"{tile_text(tile)}\n{','.join(self.fields)}"
        return load_or_compile(self.name, self.module, identity, functools.partial(self._compile, tile))

    def _compile(self, tile: Any) -> Compiled:
        return _compiled(self.dispatcher, self.signature(tile))

    def assembly(self, tile: Any) -> str:
        """Assembly text of the specialisation, for tests on the machine code."""
        signature = self.signature(tile)
        self.dispatcher.compile(signature)
        return self.dispatcher.overloads[signature].library.get_asm_str()

    def pack(self, values: dict[str, int]) -> np.ndarray:
        """An int64 argument block from named words; every field must be given, and no other."""
        if values.keys() != set(self.fields):
            raise KeyError(f"{self.name}: {sorted(values.keys() ^ set(self.fields))}")
        return np.array([values[name] for name in self.fields], np.int64)


def _dispatcher(function: Callable[..., None]) -> Any:
    from numba import njit

    return njit(**OPTIONS)(function)


def _compiled(dispatcher: Any, signature: tuple[Any, ...]) -> Compiled:
    """Compile a dispatcher for `signature`; gives the object code, the name of the C entry, and the entry."""
    imported()
    dispatcher.compile(signature)
    result = dispatcher.overloads[signature]
    symbol = result.fndesc.llvm_cfunc_wrapper_name
    address = result.library.get_pointer_to_function(symbol)
    return result.library._get_compiled_object(), symbol, Code(address, result.library)


def code_of(function: Callable[..., None], words: int) -> Code:
    """The code of `function`, which takes so many words."""

    def compiled() -> Compiled:
        from numba import types

        from cpuconv.runtime import numba_types  # noqa: F401, it tells Numba what the function calls

        return _compiled(_dispatcher(function), (types.int64,) * words)

    return load_or_compile(function.__name__, function.__module__, "", compiled)


def kernel(fields: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator: make a driver function a `Kernel` whose argument block has the (space-separated) `fields`."""
    return lambda function: Kernel(function, tuple(fields.split()))
