"""Templates of convolutions by class of sizes, at most so many: those that were made first are forgotten first."""

from __future__ import annotations

from collections.abc import Hashable

from autotune.locks import Lock
from cpuconv.conv.template import SizeClass


class SizeClasses:
    """The classes of sizes that a process has met."""

    most = 256

    def __init__(self) -> None:
        self._classes: dict[Hashable, SizeClass] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._classes)

    def of(self, key: Hashable) -> SizeClass:
        """The class of that key."""
        found = self._classes.get(key)
        if found is None:
            with self._lock:
                while len(self._classes) >= self.most:
                    del self._classes[next(iter(self._classes))]
                found = self._classes.setdefault(key, SizeClass())
        return found

    def values(self) -> list[SizeClass]:
        """All of them."""
        with self._lock:
            return [*self._classes.values()]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._classes.clear()
