"""Code for an ARM, compiled on this machine and run by an emulated one, whose own compiler takes minutes for a kernel.

With the variable CPUCONV_TEST_ARM, such as neoverse-v1, a process stands for a CPU of that class. On this machine it
compiles, and runs nothing of it (`bench.packs.dry_run`); an emulated one asks for the same kernels and finds them in
the cache folder. What choices follow from is equal in both: features, which Numba's variables state
(`bench.packs.features`), and caches. `tests/cpus.py --arm` starts both, for tests and for random problems.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench import simulated_machine
from bench.packs import dry_run
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import Machine
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME, CpuClass

if TYPE_CHECKING:
    import numpy as np

    from cpuconv.conv.plan import Plan
    from support.oracle import Operands
    from support.typed import Given

VARIABLE = "CPUCONV_TEST_ARM"
CLASSES = {name: BY_NAME[name] for name in ("cortex-a55", "cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1")}
"""Those that the emulator knows; they differ by what multiplies bytes: nothing made for it, dot products, matrices."""


def cpu() -> CpuClass | None:
    """The class of CPUs that this process stands for, if for one."""
    return CLASSES.get(os.environ.get(VARIABLE, ""))


def only_compiles() -> bool:
    """Whether this process stands for a CPU that runs other code than this one."""
    stood_for = cpu()
    return stood_for is not None and stood_for.machine != platform.machine()


def install() -> None:
    """Have this process stand for the class that the variable names, if it names one; before anybody asks for it."""
    if (stood_for := cpu()) is not None and only_compiles():
        dry_run.begin(stood_for)


@contextlib.contextmanager
def with_its_caches() -> Iterator[None]:
    """Problems are ranked by the caches of the class, not by those of the machine that compiles or emulates."""
    stood_for = cpu()
    if stood_for is None:
        yield
        return
    with simulated_machine.simulating(Machine(current(), *stood_for.caches)):
        yield


def call(made: Plan, given: Operands | Given, edge: str = "") -> np.ndarray:
    """Call a plan whose kernels are compiled and do nothing, in the place of what runs and judges it."""
    return made(given.x, residual=given.residual)


def only_call_plans() -> None:
    """Where nothing runs, have tests that compare plans with the oracle call these and compare nothing."""
    if only_compiles():
        from support import oracle, typed

        vars(oracle).update(run=call, expect=lambda *args: None)
        vars(typed).update(judge=call)
