"""The CPU whose order of instructions the code of a class has, where it is not the class's own.

Cores that reorder instructions themselves lose little by another CPU's order, and what several classes ask for is one
kernel in a pack if it has one order. LLVM's order for Apple's M1 spills least of those for such cores
(decision 20). It is the order alone: features, the cost model and names of kernels are the
class's own. On x86-64 the package's own micro-kernels have one order (decision 5). Cortex-A55 runs
instructions in order, and keeps its own.
"""

from __future__ import annotations

import re

from cpuconv.runtime import machine_code
from cpuconv.runtime.code.packs.cpu_classes import CpuClass

_TUNE = ' "tune-cpu"="[^"]*"'
ORDERS = dict.fromkeys(("cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1"), "apple-m1")


def begin(cpu: CpuClass) -> None:
    """Have what is compiled from now on that order; to be called before anything is."""
    if (order := ORDERS.get(cpu.name)) is None:
        return
    optimised = machine_code._optimised
    machine_code._optimised = lambda machine, text: optimised(machine, with_order(text, order))


def with_order(text: str, order: str) -> str:
    """A module of LLVM IR whose function has the instruction order of another CPU."""
    head, found, rest = text.partition("\n{\n")
    if not found:
        raise ValueError("the module defines no function")
    return f'{re.sub(_TUNE, "", head)} "tune-cpu"="{order}"{found}{rest}'
