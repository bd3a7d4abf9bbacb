"""The floating-point environment of all computations: round to nearest, keep subnormal numbers, no traps.

A caller's thread may have another one: some libraries flush subnormals to zero (FTZ, DAZ) or change the rounding mode
for later code in the thread. Compiled code sets the default before the first kernel and restores the caller's
afterwards; `default_environment` does so for NumPy and Python. The control word is MXCSR (x86-64) or FPCR (AArch64).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import intrinsic

_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_BYTES = ir.IntType(8).as_pointer()
_MXCSR_DEFAULT, _FPCR_DEFAULT = 0x1F80, 0

# --- in compiled code -----------------------------------------------------------------------------------------------


def _declared(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    return builder.module.declare_intrinsic(name, fnty=ir.FunctionType(result, arguments))


def _slot(builder: Any) -> Any:
    """Allocate a 32-bit stack slot, through which MXCSR is read and written."""
    with builder.goto_entry_block():
        return builder.alloca(_I32)


def _read_mxcsr(builder: Any) -> Any:
    slot = _slot(builder)
    builder.call(_declared(builder, "llvm.x86.sse.stmxcsr", _VOID, _BYTES), [builder.bitcast(slot, _BYTES)])
    return builder.zext(builder.load(slot), _I64)


def _write_mxcsr(builder: Any, state: Any) -> None:
    slot = _slot(builder)
    builder.store(builder.trunc(state, _I32), slot)
    builder.call(_declared(builder, "llvm.x86.sse.ldmxcsr", _VOID, _BYTES), [builder.bitcast(slot, _BYTES)])


def _read_fpcr(builder: Any) -> Any:
    return builder.call(_declared(builder, "llvm.aarch64.get.fpcr", _I64), [])


def _write_fpcr(builder: Any, state: Any) -> None:
    builder.call(_declared(builder, "llvm.aarch64.set.fpcr", _VOID, _I64), [state])


_REGISTERS: dict[str, tuple[Callable[..., Any], Callable[..., None], int]] = {
    "x86_64": (_read_mxcsr, _write_mxcsr, _MXCSR_DEFAULT),
    **dict.fromkeys(("aarch64", "arm64"), (_read_fpcr, _write_fpcr, _FPCR_DEFAULT)),
}
"""Functions that read and write the control word, and its default, by architecture. Elsewhere nothing is set."""


def _register(builder: Any) -> tuple[Callable[..., Any], Callable[..., None], int] | None:
    return _REGISTERS.get(builder.module.triple.partition("-")[0])


@intrinsic
def set_default(builder: Any) -> Any:
    """Set the thread's control word to the default; return the previous one."""
    register = _register(builder)
    if register is None:
        return None
    read, write, default = register
    before = read(builder)
    write(builder, _I64(default))
    return before


@intrinsic
def restore(builder: Any, before: Any) -> None:
    """Set the thread's control word to the result of `set_default`."""
    register = _register(builder)
    if register is not None:
        register[1](builder, before)


# --- in Python ------------------------------------------------------------------------------------------------------

_FENV_BYTES = 256  # upper bound of the size of C's fenv_t
_FE_DFL_ENV = -1  # address that stands for the default environment in Linux C libraries
_ONE, _BELOW_HALF_ULP, _SMALLEST_NORMAL, _SUBNORMAL = 1.0, 2.0**-55, sys.float_info.min, 5e-324


def is_default() -> bool:
    """Whether this thread rounds to nearest and keeps subnormal numbers."""
    return (
        _ONE + _BELOW_HALF_ULP == _ONE  # false when rounding up
        and _ONE - _BELOW_HALF_ULP == _ONE  # false when rounding down or towards zero
        and _SMALLEST_NORMAL / 2 != 0  # false with FTZ
        and _SUBNORMAL != 0  # false with DAZ
    )


@functools.cache
def _library() -> Any:
    """Return the C library, if it has functions for the environment and a known default; else None."""
    found = ctypes.PyDLL(None) if sys.platform == "linux" else None
    return found if hasattr(found, "fegetenv") and hasattr(found, "fesetenv") else None


@contextlib.contextmanager
def default_environment() -> Iterator[None]:
    """Context or decorator: compute in the default environment. Takes 1 µs; 3 µs if another one is set."""
    library = None if is_default() else _library()
    if library is None:
        yield
        return
    before = ctypes.create_string_buffer(_FENV_BYTES)
    library.fegetenv(before)
    library.fesetenv(ctypes.c_void_p(_FE_DFL_ENV))
    try:
        yield
    finally:
        library.fesetenv(before)
