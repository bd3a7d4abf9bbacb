"""Selection of the CPU whose model orders the instructions of a micro-kernel (LLVM's `tune-cpu`).

LLVM's model of Zen 4 moves loads so far ahead of their use that accumulators spill (decision 5). For out-of-order
cores of Arm, the order for Apple's M1 has the fewest spills (decision 20). LLVM orders code of in-order cores by their
own models; `runtime.in_order` then orders it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from cpuconv.runtime.in_order.pipeline import IN_ORDER
from cpuconv.runtime.target import target

X86, AARCH64, ARM64 = "x86_64", "aarch64", "arm64"  # architectures as in LLVM's triples; the last is macOS's name
ORDER: Mapping[str, str] = {X86: "sapphirerapids", AARCH64: "apple-m1", ARM64: "apple-m1"}


def order(by_architecture: Mapping[str, str]) -> str:
    """Return LLVM's name of the CPU to order instructions for; empty: the target itself.

    Parameters
    ----------
    by_architecture : Mapping[str, str]
        The CPU for each architecture; in-order cores and architectures that it lacks use the target's own model.
    """
    triple, cpu, _ = target()
    return "" if cpu in IN_ORDER else by_architecture.get(triple.partition("-")[0], "")
