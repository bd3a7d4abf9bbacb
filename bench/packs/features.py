"""What code of a class of CPUs may use, as Numba's variables state it: its features, and none that its name implies."""

from __future__ import annotations

import platform

from autotune.machine import host_cpu
from cpuconv.runtime.code.packs.cpu_classes import ARM, X86, CpuClass

# By architecture, what LLVM's names of CPUs may imply and code may use. Arm's are those of our classes (the source:
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
    """Those of a class with a plus, and all others with a minus."""
    return host_cpu.flat({name: name in cpu.features for name in KNOWN[cpu.machine] | cpu.features})


def lacking(cpu: CpuClass) -> list[str]:
    """What this machine lacks to run code of a class."""
    if cpu.machine != platform.machine():
        return [f"architecture {cpu.machine}"]
    there = host_cpu.host().features
    return sorted(name for name in cpu.features if not there.get(name))
