"""What the cost models know of the machine, in cycles and bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from autotune.device import fingerprint
from cpuconv.isa import Isa, current

_DEFAULT_CACHES = {"l1d": 32 << 10, "l2": 512 << 10, "l3": 8 << 20}


@dataclass(frozen=True)
class Machine:
    """Instruction set, cache sizes (bytes) and bandwidths (bytes a cycle of one core)."""

    isa: Isa
    l1: int
    l2: int
    l3: int
    frequency: float = 2.5e9
    l2_rate: float = 32.0
    l3_rate: float = 8.0
    dram_rate: float = 4.0

    def rate(self, footprint: float) -> float:
        """Bytes a cycle from the level that holds `footprint` bytes."""
        if footprint <= 0.75 * self.l2:
            return self.l2_rate
        return self.l3_rate if footprint <= 0.5 * self.l3 else self.dram_rate


@functools.lru_cache(maxsize=1)
def machine() -> Machine:
    """This machine."""
    caches = {**_DEFAULT_CACHES, **{name.lower(): size for name, size in dict(fingerprint().caches).items() if size}}
    return Machine(current(), caches["l1d"], caches["l2"], caches["l3"])
