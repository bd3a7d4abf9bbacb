"""Cache of convolution templates by class of sizes, with a limited number; the oldest are evicted first."""

from __future__ import annotations

from collections.abc import Hashable

from baselib.locks import Lock
from cpuconv.conv.template import ConvTemplate, SizeClass


class Pool:
    """The templates of a convolution, and its classes of sizes."""

    def __init__(self) -> None:
        self.templates: list[ConvTemplate] = []
        self.classes: dict[Hashable, SizeClass] = {}


class SizeClasses:
    """The classes of sizes that have occurred in a process, by convolution."""

    most = 256  # cached convolutions

    def __init__(self) -> None:
        self._pools: dict[Hashable, Pool] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._pools)

    def of(self, key: Hashable, sizes: Hashable) -> SizeClass:
        """The class `sizes` of the convolution `key`."""
        pool = self._pools.get(key)
        if pool is None:
            with self._lock:
                while len(self._pools) >= self.most:
                    del self._pools[next(iter(self._pools))]
                pool = self._pools.setdefault(key, Pool())
        found = pool.classes.get(sizes)
        return pool.classes.setdefault(sizes, SizeClass(pool.templates)) if found is None else found

    def pools(self) -> list[Pool]:
        """The pools of all convolutions."""
        with self._lock:
            return [*self._pools.values()]

    def clear(self) -> None:
        """Remove all."""
        with self._lock:
            self._pools.clear()
