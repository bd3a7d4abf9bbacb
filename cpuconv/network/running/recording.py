"""Recordings: the kernel calls of a network as one table for the launcher.

Every address is a base and an offset. Bases are the arena (values while the network runs), the workspace (of one node
at a time), constants, and the arrays of the caller. Addresses that are known when a recording is bound are written
then, those of the caller's arrays before each run. The memory of a run may be another one than that of the run before:
then all addresses in it move by the distance.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cpuconv import runtime
from cpuconv.graph.stopping import Stop, check
from cpuconv.kernels.binding.bound_step import bind
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.calls.parallel_group import grouped
from cpuconv.kernels.calls.timed import Stopwatch
from cpuconv.runtime.code.cache import NotCompiled, compiling_nothing
from cpuconv.runtime.code.together import compiled_together

_SLICE_SECONDS = 20e-3  # by the model, which may be wrong by some factor: a run ends within 50 ms of the wish


class Recording:
    """The rows of a network, to be bound to memory any number of times.

    Attributes
    ----------
    rows : Sequence[BoundStep]
    threads : int
        Most threads to run on.
    sets : Sequence[int] or None
        Numbers of rows that run side by side, from the first on; None: one after another.
    seconds : Sequence[float] or None
        How long each set takes, by the model; None: not long together.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        threads: int,
        sets: Sequence[int] | None = None,
        seconds: Sequence[float] | None = None,
    ) -> None:
        self._kept: list[Any] = []
        try:
            with compiling_nothing(noting=True):
                self.rows = [bind(step, self._kept) for step in steps]
        except NotCompiled:
            compiled_together(kernel for step in steps for kernel in step.kernels())
            self._kept.clear()
            self.rows = [bind(step, self._kept) for step in steps]
        self.threads = threads
        self.sets = [1] * len(self.rows) if sets is None or threads == 1 else sets
        self.slices = [] if seconds is None else _slices(seconds)
        starts = [0, *itertools.accumulate(row.block.size for row in self.rows)]
        self._words = np.concatenate([row.block for row in self.rows] or [np.zeros(0, np.int64)])
        self._starts = np.array(starts)
        patches: dict[str, list[int]] = {}
        for start, row in zip(starts, self.rows, strict=False):
            for base, places in row.late.items():
                patches.setdefault(base, []).extend([start + place for place in places])
        self._patches = {base: np.array(indices, np.int64) for base, indices in patches.items()}

    @property
    def bases(self) -> frozenset[str]:
        """The bases that its addresses refer to."""
        return frozenset(self._patches)

    @property
    def nbytes(self) -> int:
        """Bytes of its argument blocks."""
        return self._words.nbytes

    def bind(
        self, addresses: Mapping[str, int], moving: Mapping[str, int] | None = None, watch: Stopwatch | None = None
    ) -> Bound:
        """The rows with argument blocks of their own, timed by `watch`.

        Parameters
        ----------
        addresses : mapping of str to int
            Of bases that stay where they are.
        moving : mapping of str to int or None
            Where others, if there are some, lie from the address on that `Bound.move` counts from.
        watch : Stopwatch or None
        """
        return Bound(self, addresses, moving or {}, watch)


class Bound:
    """A recording bound to memory; not to be run twice at once."""

    def __init__(
        self,
        recording: Recording,
        addresses: Mapping[str, int],
        moving: Mapping[str, int],
        watch: Stopwatch | None = None,
    ) -> None:
        self._words = recording._words.copy()
        kept: list[Any] = [recording._kept, self._words]  # what the rows have addresses of
        known = {**addresses, **moving}
        for base, start in known.items():
            if base in recording._patches:
                self._words[recording._patches[base]] += start
        places = [recording._patches[base] for base in moving if base in recording._patches]
        self._moving = np.concatenate([np.zeros(0, np.int64), *places])
        self._cells = memoryview(self._words)  # a word is written in a tenth of the time that NumPy takes
        self._late = {
            base: list(zip(places.tolist(), recording._words[places].tolist(), strict=True))
            for base, places in recording._patches.items()
            if base not in known
        }
        starts = recording._starts
        blocks = [self._words[start:end] for start, end in zip(starts[:-1], starts[1:], strict=True)]
        rows = [(row.code, block, row.parts) for row, block in zip(recording.rows, blocks, strict=True)]
        if watch is not None:
            kept.append(watch)
            rows = watch.timed(rows)
        rows = grouped(rows, recording.sets, kept)
        self._program = runtime.Program(rows, recording.threads, kept) if rows else None
        self._slices = [runtime.Program(rows[part], recording.threads, kept) for part in recording.slices]

    def move(self, distance: int) -> None:
        """Let what moves lie so many bytes further on."""
        self._words[self._moving] += distance

    def point(self, base: str, start: int) -> None:
        """Give a base, left open when the recording was bound, its address for the next runs."""
        for place, offset in self._late.get(base, ()):
            self._cells[place] = offset + start

    def run(self, stop: Stop | None = None) -> None:
        """Run all rows; every base has an address.

        Many that take long run in slices where somebody may end them between two: `stop`, and in the main thread what
        handles signals, such as Ctrl-C. Elsewhere the interpreter's lock is asked for at the end alone.
        """
        if self._slices and (stop is not None or threading.current_thread() is threading.main_thread()):
            for part in self._slices:
                check(stop)
                part.run()
        elif self._program is not None:
            self._program.run()


def _slices(seconds: Sequence[float]) -> list[slice]:
    """Rows, of which each takes so long, in slices of about `_SLICE_SECONDS`; none where one would do."""
    ends, left = [], 0.0
    for row, each in enumerate(seconds):
        if left > 0 and left + each > _SLICE_SECONDS:
            ends.append(row)
            left = 0.0
        left += each
    return [slice(*pair) for pair in pairwise([0, *ends, len(seconds)])] if ends else []
