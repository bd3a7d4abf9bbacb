"""Intrinsics for compiled Python: shared int64 words in memory, and calls by address. All arguments are int64.

Loads, stores and compare-and-swaps are sequentially consistent; `word` and `put` are not atomic.
"""

from __future__ import annotations

from typing import Any

from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import intrinsic

I64 = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_ORDER = "seq_cst"
_ISB = "llvm.aarch64.isb", (15,)
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": _ISB, "arm64": _ISB}
"""LLVM's name of a pause instruction and its operands, by architecture."""


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())


@intrinsic
def word(builder: Any, address: Any, index: Any) -> Any:
    """Read the int64 word at address + 8·index."""
    return builder.load(builder.gep(_at(builder, address), [index]))


@intrinsic
def put(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Write the int64 word at address + 8·index."""
    builder.store(value, builder.gep(_at(builder, address), [index]))


@intrinsic
def load(builder: Any, address: Any) -> Any:
    """Read the int64 word at `address`, which another thread may write."""
    return builder.load_atomic(_at(builder, address), _ORDER, 8)


@intrinsic
def store(builder: Any, address: Any, value: Any) -> None:
    """Write the int64 word at `address`, which another thread may read."""
    builder.store_atomic(value, _at(builder, address), _ORDER, 8)


@intrinsic
def swap_if(builder: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write the int64 word at `address` if it equals `expected`; return whether it did (1 or 0)."""
    pair = builder.cmpxchg(_at(builder, address), expected, value, _ORDER, _ORDER)
    return builder.zext(builder.extract_value(pair, 1), I64)


@intrinsic
def fetch(builder: Any, address: Any) -> None:
    """Request the cache line at `address`, which another core may own, without waiting for it."""
    _prefetch(builder, address, False)


@intrinsic
def fetch_to_write(builder: Any, address: Any) -> None:
    """As `fetch`, to write to it."""
    _prefetch(builder, address, True)


def _prefetch(builder: Any, address: Any, write: bool) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, _I32, _I32, _I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTES], kind)
    builder.call(function, [builder.inttoptr(address, _BYTES), _I32(int(write)), _I32(3), _I32(1)])


@intrinsic
def pause(builder: Any) -> None:
    """Pause briefly, in favour of the core's other hardware thread."""
    name, operands = _PAUSES.get(builder.module.triple.partition("-")[0], ("", ()))
    if name:
        kind = ir.FunctionType(ir.VoidType(), [_I32] * len(operands))
        builder.call(builder.module.declare_intrinsic(name, fnty=kind), [_I32(operand) for operand in operands])


@intrinsic
def call_kernel(builder: Any, entry: Any, worker: Any, before: Any, part: Any, parts: Any, args: Any) -> None:
    """Call a kernel by its C entry `entry`; the first argument, the tile, is null."""
    kind = ir.FunctionType(_BYTES, [_BYTES, *[I64] * 4, I64.as_pointer()])
    words = [worker, before, part, parts]
    builder.call(builder.inttoptr(entry, kind.as_pointer()), [_BYTES(None), *words, _at(builder, args)])


@intrinsic
def call_5(builder: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """Call the C function at `address` with five int64 arguments."""
    return _by_address(builder, address, a, b, c, d, e)


@intrinsic
def call_8(builder: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Call the C function at `address` with eight int64 arguments."""
    return _by_address(builder, address, a, b, c, d, e, f, g, h)


def _by_address(builder: Any, address: Any, *words: Any) -> Any:
    kind = ir.FunctionType(I64, [I64] * len(words))
    return builder.call(builder.inttoptr(address, kind.as_pointer()), words)
