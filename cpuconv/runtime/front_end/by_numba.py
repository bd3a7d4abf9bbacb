"""Compilation by Numba of drivers outside the subset, or without source files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.core import config
from numba.core.registry import cpu_target

from cpuconv.runtime.code.cache import Code, Compiled, Statistics
from cpuconv.runtime.code.llvm import imported
from cpuconv.runtime.driver_functions import OPTIONS
from cpuconv.runtime.front_end.numba_types import BlockType, TileType
from cpuconv.runtime.target import target


def kernel_types(tile: Any, fields: tuple[str, ...]) -> tuple[Any, ...]:
    """Return Numba's types of a kernel's arguments, for a tile."""
    return TileType(tile), *word_types(4), BlockType(fields)


def word_types(count: int) -> tuple[Any, ...]:
    """Return Numba's types of `count` int64 words."""
    return (types.int64,) * count


def compiled(function: Callable[..., None], signature: tuple[Any, ...]) -> Compiled:
    """Compile a function with Numba; return object code, the name of the C entry, and the entry."""
    imported()
    codegen()
    Statistics.by_numba += 1
    dispatcher = njit(**OPTIONS)(function)
    dispatcher.compile(signature)
    result = dispatcher.overloads[signature]
    symbol = result.fndesc.llvm_cfunc_wrapper_name
    address = result.library.get_pointer_to_function(symbol)
    return result.library._get_compiled_object(), symbol, Code(address, result.library)


def codegen() -> Any:
    """Return Numba's code generator, made for the CPU of `runtime.target`.

    Numba creates it at first use and caches it. For a CPU named by NUMBA_CPU_NAME alone Numba would add the host's
    features, and it knows fewer of Arm's. A generator that was created before stays unchanged.
    """
    stated = config.CPU_NAME, config.CPU_FEATURES
    _, config.CPU_NAME, config.CPU_FEATURES = target()
    try:
        return cpu_target.target_context.codegen()
    finally:
        config.CPU_NAME, config.CPU_FEATURES = stated
