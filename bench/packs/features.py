"""Variables of a process that compiles for a class of CPUs, with the features of its code in Numba's form."""

from __future__ import annotations

import platform

from autotune.machine import host_cpu
from autotune.wisdom.tiers import PINNED
from bench.packs.contents import THREADS
from cpuconv.runtime.code import parallel_compile
from cpuconv.runtime.code.packs import active_pack
from cpuconv.runtime.code.packs.cpu_classes import ARM, X86, CpuClass

# By architecture, the features that LLVM's names of CPUs may imply. Arm's are those of the pack's classes (source:
# LLVM's AArch64 back end).
KNOWN = {
    X86: host_cpu.features_of_x86(),
    ARM: frozenset(
        (
            *("aes", "altnzcv", "bf16", "complxnum", "crc", "dotprod", "flagm", "fp-armv8", "fp16fml", "fptoint"),
            *("fullfp16", "i8mm", "jsconv", "lse", "lse2", "neon", "pauth", "predres", "rand", "rcpc", "rcpc-immo"),
            *("rdm", "sb", "sha2", "sha3", "sm4", "ssbs", "sve"),
        )
    ),
}


# No packs, no wisdom, no helper processes; a fixed number of threads, whatever the user's environment says.
_ALONE = {
    active_pack.VARIABLE: active_pack.OFF,
    PINNED: "",
    parallel_compile.VARIABLE: "1",
    "NUMBA_NUM_THREADS": str(max(THREADS)),
}


def stated(cpu: CpuClass) -> str:
    """Return the features of a class with a plus, and all others with a minus."""
    return host_cpu.flat({name: name in cpu.features for name in KNOWN[cpu.machine] | cpu.features})


def lacking(cpu: CpuClass) -> list[str]:
    """Return the features that this machine lacks to run code of a class."""
    if cpu.machine != platform.machine():
        return [f"architecture {cpu.machine}"]
    there = host_cpu.host().features
    return sorted(name for name in cpu.features if not there.get(name))


def environment(cpu: CpuClass) -> dict[str, str]:
    """Return variables that name the class to Numba, independent of the user and the machine."""
    return {"NUMBA_CPU_NAME": cpu.name, "NUMBA_CPU_FEATURES": stated(cpu), **_ALONE}
