"""Compiling for another architecture than this machine's: LLVM generates its code, and our loader and
LLVM's place it in memory, where nobody calls it.

No kernel knows of it: what they ask for the target (`runtime.target`, llvmlite's triples) is told the other one.
"""

from __future__ import annotations

import functools
import platform

from cpuconv.runtime import target
from cpuconv.runtime.code.loading import loader
from cpuconv.runtime.code.packs.cpu_classes import CpuClass


def begin(cpu: CpuClass) -> None:
    """Generate code for the architecture of that class from now on; to be called before any is."""
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
