"""Words of memory that threads share, and functions by address, for compiled Python: all arguments are int64.

Loads, stores and swaps are sequentially consistent; `word` and `put` are plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.described import intrinsic

I64 = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_ORDER = "seq_cst"
_ISB = "llvm.aarch64.isb", (15,)
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": _ISB, "arm64": _ISB}
"""By architecture: LLVM's name of an instruction that takes a moment, and its operands."""


def _typed(count: int, codegen: Callable[[Any, list[Any]], Any]) -> Any:
    """Signature and code generator of an intrinsic of `count` words; codegen(builder, words) gives a word or None."""

    from numba import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        result = codegen(builder, list(arguments))
        return I64(0) if result is None else result

    return types.int64(*[types.int64] * count), generate


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())


@intrinsic
def word(typingctx: Any, address: Any, index: Any) -> Any:
    """The word at address + 8·index."""
    return _typed(2, lambda builder, given: builder.load(builder.gep(_at(builder, given[0]), [given[1]])))


@intrinsic
def put(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """Set the word at address + 8·index."""

    def codegen(builder: Any, given: list[Any]) -> None:
        builder.store(given[2], builder.gep(_at(builder, given[0]), [given[1]]))

    return _typed(3, codegen)


@intrinsic
def load(typingctx: Any, address: Any) -> Any:
    """The word at `address`, which another thread may write."""
    return _typed(1, lambda builder, given: builder.load_atomic(_at(builder, given[0]), _ORDER, 8))


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """Set the word at `address`, which another thread may read."""

    def codegen(builder: Any, given: list[Any]) -> None:
        builder.store_atomic(given[1], _at(builder, given[0]), _ORDER, 8)

    return _typed(2, codegen)


@intrinsic
def swap_if(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Set the word at `address` if it is `expected`; gives whether it was."""

    def codegen(builder: Any, given: list[Any]) -> Any:
        pair = builder.cmpxchg(_at(builder, given[0]), given[1], given[2], _ORDER, _ORDER)
        return builder.zext(builder.extract_value(pair, 1), I64)

    return _typed(3, codegen)


@intrinsic
def pause(typingctx: Any) -> Any:
    """Pause for a moment, in favour of the core's other hardware thread."""

    def codegen(builder: Any, given: list[Any]) -> Any:
        name, operands = _PAUSES.get(builder.module.triple.partition("-")[0], ("", ()))
        if name:
            kind = ir.FunctionType(ir.VoidType(), [_I32] * len(operands))
            builder.call(builder.module.declare_intrinsic(name, fnty=kind), [_I32(operand) for operand in operands])

    return _typed(0, codegen)


@intrinsic
def call_kernel(typingctx: Any, entry: Any, worker: Any, before: Any, part: Any, parts: Any, args: Any) -> Any:
    """Call the kernel with the C entry `entry`, whose first argument, the tile, is empty."""

    def codegen(builder: Any, given: list[Any]) -> None:
        kind = ir.FunctionType(_BYTES, [_BYTES, *[I64] * 4, I64.as_pointer()])
        block = _at(builder, given[5])
        builder.call(builder.inttoptr(given[0], kind.as_pointer()), [_BYTES(None), *given[1:5], block])

    return _typed(6, codegen)


def _by_address(builder: Any, given: list[Any]) -> Any:
    kind = ir.FunctionType(I64, [I64] * (len(given) - 1))
    return builder.call(builder.inttoptr(given[0], kind.as_pointer()), given[1:])


@intrinsic
def call_5(typingctx: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """The C function of five words at `address`."""
    return _typed(6, _by_address)


@intrinsic
def call_8(typingctx: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """The C function of eight words at `address`."""
    return _typed(9, _by_address)
