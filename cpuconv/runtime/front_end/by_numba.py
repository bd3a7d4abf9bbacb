"""Drivers that are beyond the subset, or whose sources are not there, are compiled by Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.core import config
from numba.core.registry import cpu_target

from cpuconv.runtime.code.cache import Code, Compiled, Statistics
from cpuconv.runtime.code.llvm import imported
from cpuconv.runtime.described import OPTIONS
from cpuconv.runtime.front_end.numba_types import BlockType, TileType
from cpuconv.runtime.target import target


def kernel_types(tile: Any, fields: tuple[str, ...]) -> tuple[Any, ...]:
    """Numba's types of the arguments of a kernel, for a tile."""
    return TileType(tile), *word_types(4), BlockType(fields)


def word_types(count: int) -> tuple[Any, ...]:
    """Numba's types of so many words."""
    return (types.int64,) * count


def compiled(function: Callable[..., None], signature: tuple[Any, ...]) -> Compiled:
    """Object code, the name of the C entry, and the entry."""
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
    """Numba's code generator, for the CPU of `runtime.target`.

    It is made at first use, and kept by Numba. Of a CPU that NUMBA_CPU_NAME names alone Numba would make it with the
    host's features, and of Arm's it knows fewer; a generator that somebody else made before stays as it is.
    """
    stated = config.CPU_NAME, config.CPU_FEATURES
    _, config.CPU_NAME, config.CPU_FEATURES = target()
    try:
        return cpu_target.target_context.codegen()
    finally:
        config.CPU_NAME, config.CPU_FEATURES = stated
