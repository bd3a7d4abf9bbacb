"""Instruction scheduling of a class's code for another CPU than its own.

Out-of-order cores lose little by another CPU's instruction order, and with one order, several classes share one kernel
in a pack. LLVM's order for Apple's M1 has the fewest spills of those for out-of-order cores (decision 20). Only the
order changes: features, the cost model and names of kernels are the class's own. On x86-64 the package's own
micro-kernels have one order (decision 5). Cortex-A55 runs instructions in order, and has its own schedule.
"""

from __future__ import annotations

import re

from cpuconv.runtime import machine_code
from cpuconv.runtime.code.packs.cpu_classes import CpuClass

_TUNE = ' "tune-cpu"="[^"]*"'
ORDERS = dict.fromkeys(("cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1"), "apple-m1")


def begin(cpu: CpuClass) -> None:
    """Schedule all code from now on for that CPU; call it before anything is compiled."""
    if (order := ORDERS.get(cpu.name)) is None:
        return
    optimised = machine_code._optimised
    machine_code._optimised = lambda machine, text: optimised(machine, with_order(text, order))


def with_order(text: str, order: str) -> str:
    """Return a module of LLVM IR whose function is scheduled for another CPU."""
    head, found, rest = text.partition("\n{\n")
    if not found:
        raise ValueError("the module defines no function")
    return f'{re.sub(_TUNE, "", head)} "tune-cpu"="{order}"{found}{rest}'
