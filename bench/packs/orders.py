"""The CPU whose order of instructions the micro-kernels of a class have, where it is not the class's own.

Cores that reorder instructions themselves lose nothing by another CPU's order, and what several classes ask for is one
kernel in a pack if it has one order. LLVM's order for Apple's M1 spills least of those for such cores. It is the
order alone: features, the cost model and names of kernels are the class's own. On x86-64 the package's own micro-kernels
have one order (docs/decisions/0007-schedule.md). Cortex-A55 runs instructions in order, and keeps its own.
"""

from __future__ import annotations

from typing import Any

from cpuconv.runtime.code.packs.cpu_classes import CpuClass
from cpuconv.runtime.microkernel import MicroKernel

ORDERS = dict.fromkeys(("cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1", "apple-m1"), "apple-m1")


def begin(cpu: CpuClass) -> None:
    """Have micro-kernels that are compiled from now on that order; to be called before any is."""
    if (order := ORDERS.get(cpu.name)) is None:
        return
    optimized = MicroKernel._optimized

    def ordered(kernel: MicroKernel, tile: Any, machine: Any) -> Any:
        kernel.schedule = {**kernel.schedule, cpu.machine: order}
        return optimized(kernel, tile, machine)

    vars_of: Any = MicroKernel
    vars_of._optimized = ordered
