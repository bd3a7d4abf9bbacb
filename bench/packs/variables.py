"""Environment variables of a process that compiles for a class of CPUs."""

from __future__ import annotations

from autotune.wisdom.tiers import PINNED
from bench.packs.contents import THREADS
from bench.packs.features import stated
from cpuconv.runtime.code import parallel_compile
from cpuconv.runtime.code.packs import active_pack
from cpuconv.runtime.code.packs.cpu_classes import CpuClass

# No packs, no wisdom, no helper processes; a fixed number of threads, whatever the user's environment says.
_ALONE = {
    active_pack.VARIABLE: active_pack.OFF,
    PINNED: "",
    parallel_compile.VARIABLE: "1",
    "NUMBA_NUM_THREADS": str(max(THREADS)),
}


def environment(cpu: CpuClass) -> dict[str, str]:
    """Return variables that name the class to Numba, independent of the user and the machine."""
    return {"NUMBA_CPU_NAME": cpu.name, "NUMBA_CPU_FEATURES": stated(cpu), **_ALONE}
