"""Recordings: the kernel calls of a network as one table for the launcher.

Each address is a base and an offset. Bases are the arena (intermediate values), the workspace (of one node at a time),
constants, and the caller's arrays. Addresses that are known when a recording is bound are written then, those of the
caller's arrays before each run. If a run uses another arena than the previous one, the distance is added to all
addresses in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from cpuconv import runtime
from cpuconv.graph.stopping import Stop, check
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.words import Changes, Words, entries_of
from cpuconv.kernels.calls.parallel_group import Rows, grouped
from cpuconv.kernels.calls.timed import Stopwatch
from cpuconv.problem.arrays import address
from cpuconv.runtime.code.parallel_compile import with_kernels

Made = TypeVar("Made")
_SLICE_SECONDS = 20e-3  # modelled; the model may be off by some factor: a run ends within 50 ms of a request


def compiled(steps: Sequence[Step], make: Callable[[], Made]) -> Made:
    """Compile missing kernels of steps in parallel, then return the result of `make`."""
    return with_kernels(lambda: (kernel for step in steps for kernel in step.kernels()), make)


class Recording:
    """The program table of a network, which can be bound to memory any number of times.

    Attributes
    ----------
    words : Words
    threads : int
        Maximum number of threads.
    groups : Sequence[int]
        Numbers of consecutive rows that run concurrently.
    slices : Sequence[slice]
        Rows that run without a check whether to end the run; empty: all rows.
    changes : tuple of numpy.ndarray or None
        Places and values of words other than those of `words.words`, which is then shared with other programs.
    """

    def __init__(
        self,
        words: Words,
        threads: int,
        groups: Sequence[int],
        slices: Sequence[slice] = (),
        changes: Changes | None = None,
    ) -> None:
        self.words, self.threads, self.slices, self.changes = words, threads, slices, changes
        self.groups = [1] * len(words.codes) if threads == 1 and max(groups, default=1) > 1 else groups

    @classmethod
    def of(
        cls,
        steps: Sequence[Step],
        threads: int,
        groups: Sequence[int] | None = None,
        seconds: Sequence[float] = (),
    ) -> Recording:
        """Record steps.

        Parameters
        ----------
        steps : Sequence[Step]
        threads : int
        groups : Sequence[int] or None
            As the attribute; None: one row after another.
        seconds : Sequence[float]
            Modelled seconds of each group; empty: short in total.
        """
        words = compiled(steps, lambda: Words.of(steps))
        return cls(words, threads, [1] * len(steps) if groups is None else groups, slices(seconds))

    @property
    def bases(self) -> frozenset[str]:
        """The bases of its addresses."""
        return frozenset(self.words.relocations)

    @property
    def nbytes(self) -> int:
        """Size of the arrays of its argument blocks that no other program reads, in bytes."""
        return sum(array.nbytes for array in self.changes) if self.changes is not None else self.bound_bytes

    @property
    def bound_bytes(self) -> int:
        """Size of the argument blocks and the table of a context, in bytes."""
        return self.words.words.nbytes + 24 * len(self.words.codes)

    def bind(
        self, addresses: Mapping[str, int], moving: Mapping[str, int] | None = None, watch: Stopwatch | None = None
    ) -> BoundRecording:
        """Copy the argument blocks, and bind them; `watch` times the rows.

        Parameters
        ----------
        addresses : mapping of str to int
            Addresses of fixed bases.
        moving : mapping of str to int or None
            Offsets of other bases, relative to an address that `Bound.move` changes.
        watch : Stopwatch or None
        """
        return BoundRecording(self, addresses, moving or {}, watch)


class BoundRecording:
    """A recording bound to memory; only one thread at a time may run it."""

    def __init__(
        self,
        recording: Recording,
        bases: Mapping[str, int],
        moving: Mapping[str, int],
        watch: Stopwatch | None = None,
    ) -> None:
        words, starts, relocations, codes, parts, held, entries = recording.words
        self._words = words.copy()
        if recording.changes is not None:
            places, values = recording.changes
            self._words[places] = values
        kept: list[Any] = [held, self._words]  # objects whose addresses are in the rows
        known = {**bases, **moving}
        self._late = {
            base: list(zip(places.tolist(), self._words[places].tolist(), strict=True))
            for base, places in relocations.items()
            if base not in known
        }
        for base, start in known.items():
            if base in relocations:
                self._words[relocations[base]] += start
        self._moving = [relocations[base] for base in moving if base in relocations]
        self._cells = memoryview(self._words)  # writes a word in a tenth of NumPy's time
        if watch is not None or max(recording.groups, default=1) > 1:
            blocks = [self._words[start:end] for start, end in pairwise(starts.tolist())]
            rows = list(zip(codes, blocks, parts, strict=True))
            if watch is not None:
                kept.append(watch)
                rows = watch.timed(rows)
            entries, addresses, parts = rows_of(grouped(rows, recording.groups, kept), kept)
        else:
            addresses = (address(self._words) + 8 * starts[:-1]).tolist()
        table = np.column_stack([entries, addresses, parts]).astype(np.int64)
        self._program = runtime.Program.of(table, recording.threads, kept) if len(table) else None
        self._slices = [runtime.Program.of(table[part], recording.threads, kept) for part in recording.slices]

    def move(self, distance: int) -> None:
        """Add a distance in bytes to all addresses of moving bases."""
        for places in self._moving:
            self._words[places] += distance

    def point(self, base: str, start: int) -> None:
        """Set the address of a base that was left open when the recording was bound, for the next runs."""
        for place, offset in self._late.get(base, ()):
            self._cells[place] = offset + start

    def pointing(self, bases: Sequence[str]) -> list[tuple[memoryview, int, int, int]]:
        """The words that `point` writes for these bases: words, index, offset, and number of the base."""
        listed = [(number, late) for number, base in enumerate(bases) for late in self._late.get(base, ())]
        return [(self._cells, place, offset, number) for number, (place, offset) in listed]

    def run(self, stop: Stop | None = None) -> None:
        """Run all rows; all bases must have addresses.

        Long programs run in slices if the run may be ended between them: by `stop`, or in the main thread by signal
        handlers, such as for Ctrl-C. Otherwise, the interpreter lock is acquired only at the end.
        """
        if self._slices and (stop is not None or threading.current_thread() is threading.main_thread()):
            for part in self._slices:
                check(stop)
                part.run()
        elif self._program is not None:
            self._program.run()


def context_bytes(segments: Sequence[object]) -> int:
    """Size of the argument blocks and the tables of a context of segments, in bytes."""
    return sum(each.bound_bytes for each in segments if isinstance(each, Recording))


def rows_of(rows: Rows, kept: list[Any]) -> tuple[np.ndarray, list[int], list[int]]:
    """Entries, addresses of argument blocks, and parts of rows; `kept` keeps the rows alive."""
    kept.append(rows)
    entries = entries_of([code for code, _, _ in rows], kept)
    return entries, [address(block) for _, block, _ in rows], [each for _, _, each in rows]


def slices(seconds: Sequence[float]) -> list[slice]:
    """Divide rows with these modelled times into slices of about `_SLICE_SECONDS`; empty if one would suffice."""
    ends, left = [], 0.0
    for row, each in enumerate(seconds):
        if left > 0 and left + each > _SLICE_SECONDS:
            ends.append(row)
            left = 0.0
        left += each
    return [slice(*pair) for pair in pairwise([0, *ends, len(seconds)])] if ends else []
