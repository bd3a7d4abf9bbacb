"""Arenas: memory of a model's runs, for any sizes.

There are as many arenas as concurrent runs. A run takes the most recently used one if it is large enough, so that its
pages are mapped and in the caches; the system maps pages at their first touch, 2 MB in 0.1 to 5 ms. If none is large
enough, a new one replaces one that is too small. A pinned stream takes only arenas that runs on its cores have used:
their pages are on the memory node of these cores, as the system maps a page near the core that first touches it.
Untouched memory takes no physical memory: an arena therefore reserves twice the size of its run, for larger runs.
"""

from __future__ import annotations

import contextlib
import weakref

from cpuconv.memory.large_pages import ADVICE, PAGE, large
from cpuconv.problem.arrays import address
from cpuconv.runtime.threads import pinned_cores

_WINDOW = 256  # runs per window; arenas that no run of a window took were for a past peak
_AHEAD = 256 << 20  # maximum number of bytes reserved beyond the needs of a run
_OVERSIZE = 4  # maximum ratio of an arena's used size to the largest size in the window


class Arena:
    """Memory for one run at a time.

    Attributes
    ----------
    memory : numpy.ndarray
        The memory as bytes; runs have touched at most the first `used`.
    address : int
    home : tuple of int
        Cores of the pinned stream that uses it; empty: of any thread.
    """

    __slots__ = ("__weakref__", "address", "home", "memory", "used")

    def __init__(self, size: int, home: tuple[int, ...] = ()) -> None:
        self.home = home
        self.memory = large(size if size < PAGE or ADVICE is None else size + min(size, _AHEAD))
        self.address, self.used = address(self.memory), 0


class _Living(set[weakref.ref[Arena]]):
    """Weak references to the existing arenas, and a counter of changes of their total size; does not own the pool."""

    changes = 0

    def forget(self, arena: weakref.ref[Arena]) -> None:
        self.discard(arena)
        self.changes += 1


class Arenas:
    """A pool of arenas; several threads may use it concurrently without waiting.

    The number of arenas is that of the existing objects: an arena that an interrupted run did not return is freed with
    its last reference.

    Parameters
    ----------
    most_idle : int
        Maximum size of unused arenas, in bytes, without the most recently used one; for each pinned stream by itself.
    home : tuple of int
        Cores of the pinned stream whose pool this is; empty: of other threads, and of these pools.
    living : _Living or None
        Arenas of all these pools.
    """

    def __init__(self, most_idle: int = 0, home: tuple[int, ...] = (), living: _Living | None = None) -> None:
        self._most_idle, self._home = most_idle, home
        self._pinned: dict[tuple[int, ...], Arenas] = {}
        self._free: list[Arena] = []  # the most recently used one is the last
        self._living = _Living() if living is None else living
        self._runs = self._spare = self._needed = 0  # window statistics: runs, minimum of unused arenas, largest size

    def __len__(self) -> int:
        return len(self._living)

    @property
    def changes(self) -> int:
        """Number of changes of `nbytes`."""
        return self._living.changes

    @property
    def nbytes(self) -> int:
        """Size of all arenas, in bytes, as far as runs may have touched them."""
        return sum(arena.used for arena in [each() for each in tuple(self._living)] if arena is not None)

    def take(self, size: int) -> Arena:
        """Take an arena of at least `size` bytes, until it is returned."""
        return self._of(pinned_cores())._take(size)

    def _of(self, home: tuple[int, ...]) -> Arenas:
        """The pool of a pinned stream, or this one."""
        if not home:
            return self
        found = self._pinned.get(home)
        return found or self._pinned.setdefault(home, Arenas(self._most_idle, home, self._living))

    def _take(self, size: int) -> Arena:
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
        """Find an arena that is large enough; otherwise allocate one in place of `small`."""
        passed: list[Arena] = []
        while self._free:
            try:
                arena = self._free.pop()
            except IndexError:  # another thread took it
                break
            if arena.memory.nbytes >= size:
                self._free += [small, *passed]
                return arena
            passed.append(arena)
        self._free += passed[::-1]
        return self._new(size)

    def _new(self, size: int) -> Arena:
        arena = Arena(size, self._home)
        self._living.add(weakref.ref(arena, self._living.forget))
        return arena

    def give_back(self, arena: Arena) -> None:
        """Return an arena for later runs; free surplus or too large arenas."""
        self._of(arena.home)._give_back(arena)

    def _give_back(self, arena: Arena) -> None:
        self._free.append(arena)
        self._runs += 1
        if self._runs >= _WINDOW:
            self._end_window()
        if len(self._free) > 1:
            self._shrink()

    def _end_window(self) -> None:
        """Free arenas that the window did not need."""
        free, most = self._free, max(PAGE, _OVERSIZE * self._needed)
        del free[: self._spare]
        for arena in [each for each in free if each.used > most]:
            with contextlib.suppress(ValueError):  # another thread took it
                free.remove(arena)
        self._runs, self._spare, self._needed = 0, len(free), 0

    def _shrink(self) -> None:
        """Free the least recently used arenas beyond the limit."""
        left = self._most_idle
        for at, arena in enumerate(reversed(self._free[:-1])):
            left -= arena.used
            if left < 0:
                del self._free[: len(self._free) - 1 - at]
                break

    def release(self) -> None:
        """Free all unused arenas."""
        for pool in (self, *[*self._pinned.values()]):
            pool._free.clear()
