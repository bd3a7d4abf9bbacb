"""The machine as cost models see it: instruction set, cache sizes in bytes, and rates per cycle."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from autotune.machine.device import fingerprint
from baselib.data_classes import dataclass
from cpuconv.isa import Isa, current
from cpuconv.problem.problem import ConvProblem
from cpuconv.symbolic.sizes import now

FASTEST_CLOCK = 6.5e9  # cycles per second; lower bounds must hold on any CPU
_DEFAULT_CACHES = {"l1d": 32 << 10, "l2": 512 << 10, "l3": 8 << 20}


@dataclass(frozen=True)
class Cost:
    """Cost of a candidate, in seconds.

    Attributes
    ----------
    bound : float
        Lower bound on the time of any run.
    estimate : float
        Time that the model expects.
    """

    bound: float
    estimate: float

    def plus(self, seconds: float) -> Cost:
        """Add `seconds` to the estimate."""
        return Cost(self.bound, self.estimate + seconds)


@dataclass(frozen=True)
class Machine:
    """Instruction set and cache sizes (bytes)."""

    isa: Isa
    l1: int
    l2: int
    l3: int

    def __hash__(self) -> int:
        """Hash the cache sizes: results about problems are memoised by machine."""
        return hash((self.l1, self.l2, self.l3))

    def is_far(self, footprint: float) -> bool:
        """Whether a working set of `footprint` bytes comes from L3 or memory."""
        return footprint > 0.75 * self.l2

    def rate(self, footprint: float) -> float:
        """Bytes per cycle from the level that holds `footprint` bytes."""
        if footprint <= 0.75 * self.l2:
            return self.isa.l2_rate
        return self.isa.l3_rate if footprint <= 0.5 * self.l3 else self.isa.dram_rate

    def rates(self, footprints: np.ndarray) -> np.ndarray:
        """`rate` of each footprint."""
        far = np.where(footprints <= 0.5 * self.l3, self.isa.l3_rate, self.isa.dram_rate)
        return np.where(footprints <= 0.75 * self.l2, self.isa.l2_rate, far)

    def moving(self, size: float) -> float:
        """Cycles to move `size` bytes once, from the level that holds them."""
        return now(size) / self.rate(now(size))

    def direct_cost(self, problem: ConvProblem, cycles: float) -> Cost:
        """`cost` of an algorithm with all multiply-adds of the direct sum; the bound is their number of FMA slots."""
        return self.cost(problem.flops / (2 * self.isa.lanes * self.isa.fma_rate), cycles, problem.threads)

    def cost(self, floor: float, cycles: float, threads: int, charge: float = 1.0) -> Cost:
        """Convert cycles of one core, shared by `threads`, to seconds; `charge` is a factor on the estimate."""
        return Cost(floor / (FASTEST_CLOCK * max(1, threads)), self.seconds(cycles, threads) * charge)

    def seconds(self, cycles: float, threads: int) -> float:
        """Convert cycles of one core, shared by `threads`, to seconds."""
        return now(cycles) / (self.isa.frequency * max(1, threads))


@functools.lru_cache(maxsize=8)
def closed(of: Machine) -> Machine:
    """The machine with `Isa.closed`, for which solvers offer only candidates of the closed set of tiles."""
    return replace(of, isa=replace(of.isa, closed=True))


@functools.lru_cache(maxsize=1)
def machine() -> Machine:
    """This machine."""
    caches = {**_DEFAULT_CACHES, **{name.lower(): size for name, size in dict(fingerprint().caches).items() if size}}
    return Machine(current(), caches["l1d"], caches["l2"], caches["l3"])
