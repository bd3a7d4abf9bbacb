"""Pool of a program's callers: one recording bound to memory per concurrent run, reused by later runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from cpuconv.network.running.caller import Caller

_WINDOW = 256  # runs per window, counted while other callers are idle; unused callers were for a past peak


class Callers:
    """A pool of callers; several threads may use it concurrently.

    The number of callers is that of the existing objects. A caller that is not returned, because its run was
    interrupted or failed unexpectedly, is freed with its last reference.

    Parameters
    ----------
    each : int
        Size of one caller, in bytes.
    most_idle : int
        Maximum size of idle callers, in bytes, without one of them.
    """

    def __init__(self, each: int, most_idle: int) -> None:
        self._each, self._kept = each, 1 + most_idle // max(1, each)
        self._free: list[Caller] = []
        self._living: set[weakref.ref[Caller]] = set()
        self._runs = self._spare = 0  # window statistics: runs, minimum of unused callers

    def __len__(self) -> int:
        return len(self._living)

    @property
    def nbytes(self) -> int:
        """Size of all callers, including running ones, in bytes."""
        return self._each * len(self._living)

    def take(self, make: Callable[[], Caller]) -> Caller:
        """Take the most recently used idle caller, or a new one."""
        try:
            caller = self._free.pop()
        except IndexError:
            caller = make()
            self._living.add(weakref.ref(caller, self._living.discard))
        if len(self._free) < self._spare:
            self._spare = len(self._free)
        return caller

    def give_back(self, caller: Caller) -> None:
        """Return a caller after a regular run; free surplus ones."""
        caller.release()
        self._free.append(caller)
        if len(self._free) > 1:
            self._shrink()

    def _shrink(self) -> None:
        """Free the callers that the window did not need, and the least recently used ones beyond the limit."""
        free = self._free
        self._runs += 1
        if self._runs >= _WINDOW:
            del free[: self._spare]
            self._runs, self._spare = 0, len(free)
        if len(free) > self._kept:
            del free[: -self._kept]

    def release(self) -> None:
        """Free all idle callers."""
        self._free.clear()
