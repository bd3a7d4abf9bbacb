"""The callers of a program: recordings bound to memory for each run at once, which the next runs take over."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from cpuconv.network.running.caller import Caller

_WINDOW = 256  # runs that found others idle: what none of so many took was for a peak that is over


class Callers:
    """A pool; several threads may use it at once.

    How many there are is told by those that live. So one that is not given back, because its run was interrupted or
    failed in some unforeseen way, is neither missed nor counted for ever: it goes with its last reference.

    Parameters
    ----------
    each : int
        Bytes of one.
    most_idle : int
        Most bytes that those which do not run may take, beside one of them.
    """

    def __init__(self, each: int, most_idle: int) -> None:
        self._each, self._kept = each, 1 + most_idle // max(1, each)
        self._free: list[Caller] = []
        self._living: set[weakref.ref[Caller]] = set()
        self._runs = self._spare = 0  # of the window; callers that none of its runs took

    def __len__(self) -> int:
        return len(self._living)

    @property
    def nbytes(self) -> int:
        """Bytes of all of them, those that run among them."""
        return self._each * len(self._living)

    def take(self, make: Callable[[], Caller]) -> Caller:
        """One that does not run, the latest that did, or a new one."""
        try:
            caller = self._free.pop()
        except IndexError:
            caller = make()
            self._living.add(weakref.ref(caller, self._living.discard))
        if len(self._free) < self._spare:
            self._spare = len(self._free)
        return caller

    def give_back(self, caller: Caller) -> None:
        """Let the next run take a caller that is whole; those that are too many go."""
        caller.release()
        self._free.append(caller)
        if len(self._free) > 1:
            self._shrink()

    def _shrink(self) -> None:
        """Free those that the window did not need, and what is beyond the limit: the ones that ran longest ago."""
        free = self._free
        self._runs += 1
        if self._runs >= _WINDOW:
            del free[: self._spare]
            self._runs, self._spare = 0, len(free)
        if len(free) > self._kept:
            del free[: -self._kept]

    def release(self) -> None:
        """Free those that do not run."""
        self._free.clear()
