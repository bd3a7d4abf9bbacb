"""Micro-kernels: innermost loops emitted straight to LLVM, without Numba's front end, and called by address.

A driver (a `Kernel`) is compiled once. It calls micro-kernels, one for each tile, which compile in a tenth of the
time. All arguments are int64 words: addresses, byte strides, counts.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cpuconv.runtime.code.cache import Code, Entries, link_object, load_or_compile
from cpuconv.runtime.code.llvm import imported, ir
from cpuconv.runtime.described import with_words
from cpuconv.runtime.target import target, target_machine
from cpuconv.runtime.tiles import tile_text

I64 = ir.IntType(64)

# The CPU whose scheduling model orders the instructions, by LLVM's name of the architecture; else it is the target's
# own. LLVM's model of Zen 4 moves loads so far ahead of their use that sums spill (docs/decisions/0007-schedule.md).
SCHEDULE: Mapping[str, str] = {"x86_64": "sapphirerapids"}
_SYMBOL = "cpuconv_micro_kernel"
_lock = threading.Lock()  # llvmlite's identified types and pass builders are not safe to share


class MicroKernel:
    """An emitter `emit(tile, builder, *words)`; `entry(tile)` compiles or loads the code for one tile.

    Attributes
    ----------
    schedule : Mapping[str, str]
        By architecture, the CPU that LLVM orders instructions for; other architectures keep the target's own order.
    """

    def __init__(self, emit: Callable[..., None], *, schedule: Mapping[str, str] = SCHEDULE) -> None:
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
        """The C signature: a word each."""
        return ir.FunctionType(ir.VoidType(), [I64] * len(self.words))

    def entry(self, tile: Any) -> Code:
        """The micro-kernel for `tile` (compiled at most once per machine)."""
        return self._entries.get(tile, lambda: self._load(tile))

    def assembly(self, tile: Any) -> str:
        """Assembly text for `tile`, for tests on the machine code."""
        with _lock:
            imported()
            machine = target_machine()
            return machine.emit_assembly(self._optimized(tile, machine))

    def _load(self, tile: Any) -> Code:
        compiled = functools.partial(self._compile, tile)
        return load_or_compile(self.name, self.module, tile_text(tile), compiled, link_object)

    def _compile(self, tile: Any) -> tuple[bytes, str, Code]:
        with _lock:
            imported()
            machine = target_machine()
            code = machine.emit_object(self._optimized(tile, machine))
        return code, _SYMBOL, link_object(code, _SYMBOL)

    def _optimized(self, tile: Any, machine: Any) -> Any:
        import llvmlite.binding as llvm

        module = ir.Module(self.name)
        module.triple = target()[0]
        module.data_layout = str(machine.target_data)
        function = ir.Function(module, self.type, _SYMBOL)
        if cpu := self.schedule.get(module.triple.partition("-")[0]):
            set.add(function.attributes, f'"tune-cpu"="{cpu}"')  # past llvmlite's list of plain words
        for argument, name in zip(function.args, self.words, strict=True):
            argument.name = name
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._emit(tile, builder, *function.args)
        builder.ret_void()
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
        passes.getModulePassManager().run(parsed, passes)
        return parsed

    def caller(self) -> Any:
        """A function for drivers: caller(address, *words) calls the micro-kernel at `address`."""
        kind = self.type

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
            return I64(0)

        def typed(typingctx: Any, *arguments: Any) -> Any:
            from numba import types

            return types.int64(*[types.int64] * len(arguments)), codegen

        return with_words(typed, "call", ("address", *self.words))
