"""The kernel decorator: one ABI, `kernel(tile, worker, before, part, parts, args)`, reached by C address.

A kernel computes one part (`part` of `parts`) of the work that `args` describes, in the workspace of `worker`, and
returns nothing. `before` is the worker's previous part of the same work, -1 for none: its intermediate results are
still in the workspace. Any worker may compute any part, and no result depends on which one does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.runtime import machine_code
from cpuconv.runtime.code.cache import Code, Compiled, Entries, known_ir_hash, load_or_compile
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import inline
from cpuconv.runtime.front_end.source import NotInSubsetError
from cpuconv.runtime.front_end.values import Block
from cpuconv.runtime.front_end.writing import write_body
from cpuconv.runtime.tiles import tile_text

_SYMBOL = "cpuconv_kernel"
_BYTES = ir.IntType(8).as_pointer()
_KIND = ir.FunctionType(_BYTES, [_BYTES, *[ir.IntType(64)] * 4, ir.IntType(64).as_pointer()])
"""C signature of a kernel: a null pointer for the tile, four int64, and the argument block; returns a null pointer."""

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

    def entry(self, tile: Any) -> Code:
        """Return the kernel specialised for `tile` (compiled at most once per machine)."""
        return self._entries.get(tile, lambda: self._load(tile))

    def _load(self, tile: Any) -> Code:
        identity = f"{tile_text(tile)}\n{','.join(self.fields)}"

        def compiled() -> Compiled:
            try:
                return machine_code.compiled(self.name, _SYMBOL, _KIND, self._write(tile))
            except NotInSubsetError:
                from cpuconv.runtime.front_end import by_numba

                return by_numba.compiled(self._function, by_numba.kernel_types(tile, self.fields))

        return load_or_compile(self.name, self.module, identity, compiled)

    def assembly(self, tile: Any) -> str:
        """Return the assembly text of the specialisation, for tests of the machine code."""
        return machine_code.assembly(self.name, _SYMBOL, _KIND, self._write(tile))

    def ir_hash(self, tile: Any) -> str:
        """Return `Code.ir_hash` of the specialisation without compiling it; empty if Numba compiles it."""
        try:
            return known_ir_hash(self, tile) or machine_code.ir_hash(self.name, _SYMBOL, _KIND, self._write(tile))
        except NotInSubsetError:
            return ""

    def _write(self, tile: Any) -> machine_code.Write:
        places = {name: place for place, name in enumerate(self.fields)}

        def write(builder: Any, _: Any, *given: Any) -> None:
            *words, pointer = given
            write_body(self._function, builder, tile, *words, Block(places, pointer))

        return write

    def pack(self, values: dict[str, int]) -> np.ndarray:
        """Return an int64 argument block; `values` must have exactly the kernel's fields."""
        if values.keys() != set(self.fields):
            raise KeyError(f"{self.name}: {sorted(values.keys() ^ set(self.fields))}")
        return np.array([values[name] for name in self.fields], np.int64)


def code_of(function: Callable[..., None], words: int) -> Code:
    """Return the code of `function`, which takes `words` int64 arguments."""

    def compiled() -> Compiled:
        kind = ir.FunctionType(_BYTES, [ir.IntType(64)] * words)
        try:
            return machine_code.compiled(function.__name__, _SYMBOL, kind, functools.partial(write_body, function))
        except NotInSubsetError:
            from cpuconv.runtime.front_end import by_numba

            return by_numba.compiled(function, by_numba.word_types(words))

    return load_or_compile(function.__name__, function.__module__, "", compiled)


def kernel(fields: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator: make a driver function a `Kernel` whose argument block has the (space-separated) `fields`."""
    return lambda function: Kernel(function, tuple(fields.split()))
