"""CPU features for the code of a class, in the form of Numba's variables, without others that the name implies."""

from __future__ import annotations

import platform

from autotune.machine import host_cpu
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


def stated(cpu: CpuClass) -> str:
    """Return the features of a class with a plus, and all others with a minus."""
    return host_cpu.flat({name: name in cpu.features for name in KNOWN[cpu.machine] | cpu.features})


def lacking(cpu: CpuClass) -> list[str]:
    """Return the features that this machine lacks to run code of a class."""
    if cpu.machine != platform.machine():
        return [f"architecture {cpu.machine}"]
    there = host_cpu.host().features
    return sorted(name for name in cpu.features if not there.get(name))
