"""Cores of Arm as models: cycles of a loop by llvm-mca, where its model is right, and by `runtime.in_order`.

llvm-mca's Neoverse N1 counts a load as two of three µops a cycle. The core dispatches eight µops and decodes four
instructions a cycle, so the loop takes what llvm-mca says with eight, and no less than a cycle per four instructions.
Cortex-A76 is the same core. Source: Arm's software optimisation guides of Cortex-A76, Neoverse N1 and Neoverse V1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cpuconv.runtime.in_order import pipeline

TOOLS = tuple(f"llvm-mca{version}" for version in ("-22", "", "-21", "-20", "-19"))
MIN_VERSION = 18  # older ones have no model of Neoverse N1 and V1
_TURNS = 50
_DECODED = 4  # instructions per cycle of a Neoverse N1


@dataclass(frozen=True)
class Core:
    """A core: 128-bit FMAs per cycle, the CPU class that its code is compiled for, and cycles per turn of a loop."""

    name: str
    compiled_for: str
    fma_rate: int
    cycles: Callable[[Sequence[str]], float]


class Unavailable(RuntimeError):
    """There is no llvm-mca with the models."""


def tool() -> str:
    """Path of an llvm-mca that has the models.

    Raises
    ------
    Unavailable
        There is none; Debian's package is llvm-22.
    """
    for name in TOOLS:
        if path := shutil.which(name):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            if (found := re.search(r"version (\d+)", said)) and int(found[1]) >= MIN_VERSION:
                return path
    raise Unavailable(f"no llvm-mca of version {MIN_VERSION} or later is in PATH (Debian: apt-get install llvm-22)")


def by_mca(lines: Sequence[str], cpu: str, *options: str, triple: str = "aarch64") -> float:
    """Cycles per turn of a loop, by llvm-mca's model of `cpu`."""
    command = [tool(), f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={_TURNS}", *options]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"llvm-mca gave no cycles: {done.stderr.strip()[:500]}")
    return int(found[1]) / _TURNS


def _neoverse_n1(lines: Sequence[str]) -> float:
    return max(by_mca(lines, "neoverse-n1", "-dispatch=8"), len(lines) / _DECODED)


def in_order(lines: Sequence[str]) -> float:
    """Cycles per turn of a loop on a Cortex-A55."""
    return pipeline.cycles([pipeline.read(line) for line in lines])


CORES = (
    Core("Cortex-A76, Neoverse N1", "cortex-a76", 2, _neoverse_n1),
    Core("Neoverse V1", "neoverse-v1", 4, lambda lines: by_mca(lines, "neoverse-v1")),
    Core("Cortex-A55", "cortex-a55", 1, in_order),
)
BY_CLASS = {core.compiled_for: core for core in CORES}
