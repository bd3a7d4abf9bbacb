"""Cross-compilation: LLVM generates code for another architecture; it is loaded into memory, but never called.

Kernels need no changes: the functions that return the target (`runtime.target`, llvmlite's triples) return the other
one.
"""

from __future__ import annotations

import functools
import platform

from cpuconv.runtime import target
from cpuconv.runtime.code.loading import loader
from cpuconv.runtime.code.packs.cpu_classes import CpuClass


def begin(cpu: CpuClass) -> None:
    """Generate code for the architecture of a class from now on; call it before anything is compiled."""
    own = platform.machine()
    if cpu.machine == own:
        return
    import llvmlite.binding as llvm

    triple = target._TRIPLES[cpu.machine]
    target._TRIPLES[own] = triple
    loader._MACHINES[own] = loader._MACHINES[cpu.machine]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = llvm.get_default_triple = lambda: triple
    llvm.Target.from_default_triple = functools.partial(llvm.Target.from_triple, triple)
