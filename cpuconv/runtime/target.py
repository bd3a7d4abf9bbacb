"""The machine that code is generated for, as LLVM names it."""

from __future__ import annotations

import functools

import llvmlite.binding as llvm
import numba
from numba.core.registry import cpu_target


@functools.lru_cache(maxsize=1)
def target() -> tuple[str, str, str]:
    """Triple, CPU name and features of the target.

    They are Numba's, with one exception: for a CPU named by NUMBA_CPU_NAME alone, Numba would add the host's features,
    which belong to another machine; they are left out.
    """
    triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    if numba.config.CPU_NAME is not None and numba.config.CPU_FEATURES is None:
        features = ""
    return triple, cpu, features


def target_machine(opt: int = 3) -> llvm.TargetMachine:
    """A code generator for `target()`, as Numba's JIT would make it."""
    triple, cpu, features = target()
    reloc = "static" if triple.startswith("x86") else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc=reloc, codemodel="jitdefault"
    )
