"""The target of kernels: instruction set, threads, and modelled times of memory and vector operations."""

from __future__ import annotations

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import OF_DTYPE
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import machine
from cpuconv.symbolic.sizes import applied

PARALLEL_BYTES = 1 << 17  # bytes read and written; with fewer, one thread ends before others have started
_PAIR_SECONDS = 0.7e-6  # synchronisation of a call that two threads share
_EACH_SECONDS = 0.15e-6  # per further thread, polled in turn: two cache lines from another core
# minimum bytes per part, and maximum parts per thread: others take over parts of a thread that starts late
PART_BYTES, MAX_PARTS = 1 << 15, 8


def join_seconds(threads: int) -> float:
    """Seconds to start and join a call on `threads` threads; measured for two, assumed for more."""
    return _PAIR_SECONDS + _EACH_SECONDS * (threads - 2) if threads > 1 else 0.0


@dataclass(frozen=True)
class Processor:
    """An instruction set and the maximum number of threads of a run."""

    isa: Isa
    threads: int = 1

    def block(self, dtype: np.dtype) -> int:
        """Channels per block, for an element type."""
        return self.isa.block(OF_DTYPE[dtype])

    def moving(self, size: float) -> float:
        """Modelled time to read or write `size` bytes, in seconds."""
        here = machine()
        return here.seconds(here.moving(size), self.threads)

    def computing(self, operations: float) -> float:
        """Modelled time of `operations` vector operations on one float32 each, in seconds."""
        return machine().seconds(operations / self.isa.lanes, self.threads)

    def parts(self, size: float) -> int:
        """Parts per thread (`Step.parts`) of a step that moves `size` bytes; 0: one thread runs it."""
        return 0 if self.threads == 1 else applied(_parts, size, self.threads)


def _parts(size: float, threads: int) -> int:
    return 0 if size < PARALLEL_BYTES else max(1, min(MAX_PARTS, int(size / threads / PART_BYTES)))
