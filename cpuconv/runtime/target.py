"""The machine that code is generated for, as LLVM names it; to know it, LLVM is not imported on Linux."""

from __future__ import annotations

import functools
import os
import platform
import sys
from typing import Any

from autotune.machine import host_cpu

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


@functools.lru_cache(maxsize=1)
def target() -> tuple[str, str, str]:
    """Triple, CPU name and features of the target."""
    name, features = host_cpu.chosen(os.environ)
    return _triple(), name, features if isinstance(features, str) else host_cpu.flat(features)


def _triple() -> str:
    if sys.platform == "linux" and sys.maxsize > 1 << 32 and platform.machine() in _TRIPLES:
        return _TRIPLES[platform.machine()]
    import llvmlite.binding as llvm

    return llvm.get_process_triple()


def codegen() -> Any:
    """Numba's code generator, for `target()`.

    It is made at first use and kept by Numba. Of a CPU that NUMBA_CPU_NAME names alone Numba would make it with the
    host's features; a generator that somebody else made before stays as it is.
    """
    from numba.core import config
    from numba.core.registry import cpu_target

    stated = config.CPU_FEATURES
    if config.CPU_NAME is not None and stated is None:
        config.CPU_FEATURES = ""
    try:
        return cpu_target.target_context.codegen()
    finally:
        config.CPU_FEATURES = stated


def target_machine(opt: int = 3) -> Any:
    """A code generator for `target()`, as Numba's JIT would make it."""
    import llvmlite.binding as llvm

    codegen()  # it initialises LLVM
    triple, cpu, features = target()
    reloc = "static" if triple.startswith("x86") else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc=reloc, codemodel="jitdefault"
    )
