"""Micro-kernels: innermost loops that are written as LLVM IR with llvmlite, and called by address.

A driver (a `Kernel`) is compiled once. It calls micro-kernels, one for each tile, which compile in less
time. All arguments are int64 words: addresses, byte strides, counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cpuconv.runtime import machine_code
from cpuconv.runtime.code.cache import Code, Compiled, Entries, known_ir_hash, link_object, load_or_compile
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import Emitted
from cpuconv.runtime.instruction_order import ORDER, order
from cpuconv.runtime.tiles import tile_text

I64 = ir.IntType(64)

_SYMBOL = "cpuconv_micro_kernel"


class MicroKernel:
    """An emitter `emit(tile, builder, *words)`; `entry(tile)` compiles or loads the code for one tile.

    Attributes
    ----------
    schedule : Mapping[str, str]
        CPU for which LLVM orders instructions, by architecture (`instruction_order.order`).
    """

    def __init__(self, emit: Callable[..., None], *, schedule: Mapping[str, str] = ORDER) -> None:
        code = emit.__code__
        self.module = emit.__module__
        self.name = f"{self.module}.{emit.__qualname__}"
        self.words = code.co_varnames[2 : code.co_argcount]
        self.__doc__ = emit.__doc__
        self.schedule = schedule
        self._emit = emit
        self._entries = Entries()

    @property
    def type(self) -> ir.FunctionType:
        """C signature: one int64 per word, no result."""
        return ir.FunctionType(ir.VoidType(), [I64] * len(self.words))

    def entry(self, tile: Any) -> Code:
        """Return the micro-kernel for `tile` (compiled at most once per machine)."""
        return self._entries.get(tile, lambda: self._load(tile))

    def assembly(self, tile: Any) -> str:
        """Return the assembly text for `tile`, for tests of the machine code."""
        return machine_code.assembly(*self._written(tile))

    def ir_hash(self, tile: Any) -> str:
        """Return `Code.ir_hash` for `tile` without compiling it."""
        return known_ir_hash(self, tile) or machine_code.ir_hash(*self._written(tile))

    def _load(self, tile: Any) -> Code:
        def compiled() -> Compiled:
            return machine_code.compiled(*self._written(tile))

        return load_or_compile(self.name, self.module, tile_text(tile), compiled, link_object)

    def _written(self, tile: Any) -> tuple[str, str, ir.FunctionType, machine_code.Write, str]:
        def write(builder: Any, *words: Any) -> None:
            for argument, name in zip(words, self.words, strict=True):
                argument.name = name
            self._emit(tile, builder, *words)

        return self.name, _SYMBOL, self.type, write, order(self.schedule)

    def caller(self) -> Any:
        """Return a function for drivers: caller(address, *words) calls the micro-kernel at `address`."""

        def call(builder: Any, address: Any, *words: Any) -> None:
            builder.call(builder.inttoptr(address, self.type.as_pointer()), words)

        return Emitted(call, ("address", *self.words))
