"""Pool of a program's execution contexts: one recording bound to memory per concurrent run, reused by later runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from cpuconv.network.running.execution_context import ExecutionContext

_WINDOW = 256  # runs per window, counted while other contexts are idle; unused contexts were for a past peak


class ContextPool:
    """A pool of contexts; several threads may use it concurrently.

    The number of contexts is that of the existing objects. A context that is not returned, because its run was
    interrupted or failed unexpectedly, is freed with its last reference.

    Parameters
    ----------
    each : int
        Size of one context, in bytes.
    most_idle : int
        Maximum size of idle contexts, in bytes, without one of them.
    """

    def __init__(self, each: int, most_idle: int) -> None:
        self._each, self._kept = each, 1 + most_idle // max(1, each)
        self._free: list[ExecutionContext] = []
        self._living: set[weakref.ref[ExecutionContext]] = set()
        self._runs = self._spare = 0  # window statistics: runs, minimum of unused contexts

    def __len__(self) -> int:
        return len(self._living)

    @property
    def nbytes(self) -> int:
        """Size of all contexts, including running ones, in bytes."""
        return self._each * len(self._living)

    def take(self, make: Callable[[], ExecutionContext]) -> ExecutionContext:
        """Take the most recently used idle context, or a new one."""
        try:
            context = self._free.pop()
        except IndexError:
            context = make()
            self._living.add(weakref.ref(context, self._living.discard))
        if len(self._free) < self._spare:
            self._spare = len(self._free)
        return context

    def give_back(self, context: ExecutionContext) -> None:
        """Return a context after a regular run; free surplus ones."""
        context.release()
        self._free.append(context)
        if len(self._free) > 1:
            self._shrink()

    def _shrink(self) -> None:
        """Free the contexts that the window did not need, and the least recently used ones beyond the limit."""
        free = self._free
        self._runs += 1
        if self._runs >= _WINDOW:
            del free[: self._spare]
            self._runs, self._spare = 0, len(free)
        if len(free) > self._kept:
            del free[: -self._kept]

    def release(self) -> None:
        """Free all idle contexts."""
        self._free.clear()
