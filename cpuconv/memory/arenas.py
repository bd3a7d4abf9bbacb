"""Arenas: memory that runs of a model take while they last, whichever sizes they are of.

There are as many as runs at once. A run takes the one that ran last if it is large enough, so that its pages are there
and in the caches; the system gives pages at their first touch, 2 MB in 0.1 to 5 ms. Where none is large enough, a new
one takes the place of one that is too small. What is not touched takes no memory: an arena asks for twice as much as
its run, for larger ones.
"""

from __future__ import annotations

import contextlib
import weakref

from cpuconv.memory.large_pages import ADVICE, PAGE, large
from cpuconv.problem.arrays import address

_WINDOW = 256  # runs: what none of so many took was for a peak that is over
_AHEAD = 256 << 20  # most bytes that are asked for beyond what a run needs
_OVERSIZE = 4  # times what runs of a window needed at most: such an arena was for a size that is over


class Arena:
    """Memory for one run at a time.

    Attributes
    ----------
    memory : numpy.ndarray
        Bytes, of which runs have touched the first `used` at most.
    address : int
    """

    __slots__ = ("__weakref__", "address", "memory", "used")

    def __init__(self, size: int) -> None:
        self.memory = large(size if size < PAGE or ADVICE is None else size + min(size, _AHEAD))
        self.address, self.used = address(self.memory), 0


class _Living(set[weakref.ref[Arena]]):
    """The arenas that live, and how often the bytes of all of them have changed; it does not hold the pool."""

    changes = 0

    def forget(self, arena: weakref.ref[Arena]) -> None:
        self.discard(arena)
        self.changes += 1


class Arenas:
    """A pool; several threads may use it at once, and none waits for another.

    How many there are is told by those that live: one that is not given back, because its run was interrupted, goes
    with its last reference.

    Parameters
    ----------
    most_idle : int
        Most bytes of those that no run has, beside the one that ran last.
    """

    def __init__(self, most_idle: int = 0) -> None:
        self._most_idle = most_idle
        self._free: list[Arena] = []  # the one that ran last is the last
        self._living = _Living()
        self._runs = self._spare = self._needed = 0  # of the window; arenas that none took, and the largest size

    def __len__(self) -> int:
        return len(self._living)

    @property
    def changes(self) -> int:
        """How often `nbytes` has changed."""
        return self._living.changes

    @property
    def nbytes(self) -> int:
        """Bytes of all of them, as far as runs may have touched them."""
        return sum(arena.used for arena in [each() for each in tuple(self._living)] if arena is not None)

    def take(self, size: int) -> Arena:
        """At least `size` bytes, until they are given back."""
        try:
            arena = self._free.pop()
        except IndexError:
            arena = self._new(size)
        if arena.memory.nbytes < size:
            arena = self._larger(arena, size)
        if len(self._free) < self._spare:
            self._spare = len(self._free)
        if size > self._needed:
            self._needed = size
        if size > arena.used:
            arena.used = size
            self._living.changes += 1
        return arena

    def _larger(self, small: Arena, size: int) -> Arena:
        """One that is large enough; a new one in the place of `small` where there is none."""
        passed: list[Arena] = []
        while self._free:
            try:
                arena = self._free.pop()
            except IndexError:  # another thread has it
                break
            if arena.memory.nbytes >= size:
                self._free += [small, *passed]
                return arena
            passed.append(arena)
        self._free += passed[::-1]
        return self._new(size)

    def _new(self, size: int) -> Arena:
        arena = Arena(size)
        self._living.add(weakref.ref(arena, self._living.forget))
        return arena

    def give_back(self, arena: Arena) -> None:
        """Let the next run take an arena; those that are too many or too large go."""
        self._free.append(arena)
        self._runs += 1
        if self._runs >= _WINDOW:
            self._end_window()
        if len(self._free) > 1:
            self._shrink()

    def _end_window(self) -> None:
        """Free what the window did not need."""
        free, most = self._free, max(PAGE, _OVERSIZE * self._needed)
        del free[: self._spare]
        for arena in [each for each in free if each.used > most]:
            with contextlib.suppress(ValueError):  # another thread has it
                free.remove(arena)
        self._runs, self._spare, self._needed = 0, len(free), 0

    def _shrink(self) -> None:
        """Free what is beyond the limit: the ones that ran longest ago."""
        left = self._most_idle
        for at, arena in enumerate(reversed(self._free[:-1])):
            left -= arena.used
            if left < 0:
                del self._free[: len(self._free) - 1 - at]
                break

    def release(self) -> None:
        """Free those that no run has."""
        self._free.clear()
