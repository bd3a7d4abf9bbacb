"""The target of code generation in LLVM's terms; on Linux it is found without importing LLVM."""

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
    """Return triple, CPU name and features of the target.

    They are Numba's, with one exception: for a CPU named by NUMBA_CPU_NAME alone, Numba would add the host's features.
    These may be wrong for that CPU, so they are left out.
    """
    name, features = host_cpu.chosen(os.environ)
    if os.environ.get("NUMBA_CPU_NAME") and os.environ.get("NUMBA_CPU_FEATURES") is None:
        features = ""
    return _triple(), name, features if isinstance(features, str) else host_cpu.flat(features)


def _triple() -> str:
    if sys.platform == "linux" and sys.maxsize > 1 << 32 and platform.machine() in _TRIPLES:
        return _TRIPLES[platform.machine()]
    import llvmlite.binding as llvm

    return llvm.get_process_triple()


def target_machine(opt: int = 3) -> Any:
    """Return an LLVM target machine for `target()`, with the options of Numba's JIT."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, cpu, features = target()
    reloc = "static" if triple.startswith("x86") else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc=reloc, codemodel="jitdefault"
    )
