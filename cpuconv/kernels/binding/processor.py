"""The processor that kernels are bound for: instruction set, threads, and how long work takes by the model."""

from __future__ import annotations

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import OF_DTYPE
from cpuconv.following.sizes import applied
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import machine

PARALLEL_BYTES = 1 << 17  # read and written; below, one thread is done before others have started
_PAIR_SECONDS = 0.7e-6  # of a call that two threads share, beside its work
_EACH_SECONDS = 0.15e-6  # for each further one, asked in turn: two cache lines that another core has
PART_BYTES, MOST_PARTS = 1 << 15, 8  # of a part, at least, and for each thread: a thread that starts late leaves some


def join_seconds(threads: int) -> float:
    """Seconds for which so many threads begin and end a call together; measured for two, assumed for more."""
    return _PAIR_SECONDS + _EACH_SECONDS * (threads - 2) if threads > 1 else 0.0


@dataclass(frozen=True)
class Processor:
    """An instruction set and the most threads of a run."""

    isa: Isa
    threads: int = 1

    def block(self, dtype: np.dtype) -> int:
        """Channels of a block of such elements."""
        return self.isa.block(OF_DTYPE[dtype])

    def moving(self, size: float) -> float:
        """Seconds to read or write `size` bytes, by the model."""
        here = machine()
        return here.seconds(here.moving(size), self.threads)

    def computing(self, operations: float) -> float:
        """Seconds of so many vector operations on one float each, by the model."""
        return machine().seconds(operations / self.isa.lanes, self.threads)

    def parts(self, size: float) -> int:
        """Parts of a step (`Step.parts`) that moves so many bytes: some for each thread, or 0: run by one."""
        return 0 if self.threads == 1 else applied(_parts, size, self.threads)


def _parts(size: float, threads: int) -> int:
    return 0 if size < PARALLEL_BYTES else max(1, min(MOST_PARTS, int(size / threads / PART_BYTES)))
