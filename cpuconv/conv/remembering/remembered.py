"""What calls leave for later calls, within a bound on bytes: the least recently used goes first."""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable
from typing import Any

from autotune.locks import Lock

_MOST = 2 << 30  # bytes
_SHARE = 0.25  # of the machine's memory, if that is less
_EVICTED = 0.1  # of the limit, forgotten at once, so that entries are seldom sorted
_clock = itertools.count()


def default_limit() -> int:
    """A quarter of the machine's memory, at most 2 GiB."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return _MOST
    return min(_MOST, int(_SHARE * memory))


class Entry:
    """A remembered value of `size` bytes; the value is None once it is forgotten."""

    __slots__ = ("size", "used", "value")

    def __init__(self, value: Any, size: int) -> None:
        self.value, self.size, self.used = value, size, next(_clock)

    def use(self) -> Any:
        """The value, which now counts as used last."""
        self.used = next(_clock)
        return self.value


class Remembered:
    """A mapping with a bound on the bytes of its values; several threads may use it at once.

    Attributes
    ----------
    limit : int
        Most bytes of all values together; a larger value is not kept.
    nbytes : int
        Bytes of all values.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes = limit, 0
        self._entries: dict[Hashable, Entry] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any | None:
        """The value, which now counts as used last; None if it is not kept."""
        entry = self._entries.get(key)
        return None if entry is None else entry.use()

    def size_of(self, key: Hashable) -> int | None:
        """Bytes that a value counts for; None if it is not kept."""
        entry = self._entries.get(key)
        return None if entry is None else entry.size

    def put(self, key: Hashable, value: Any, size: int) -> Entry | None:
        """Keep a value of `size` bytes and forget others until it fits; None if it is larger than the limit."""
        entry = Entry(value, size)
        with self._lock:
            self._drop(key)
            if size > self.limit:
                return None
            self._entries[key] = entry
            self.nbytes += size
            if self.nbytes > self.limit:
                self._shrink(max(size, int((1 - _EVICTED) * self.limit)))
        return entry

    def drop(self, key: Hashable) -> None:
        """Forget one value, if it is kept."""
        with self._lock:
            self._drop(key)

    def resize(self, limit: int) -> None:
        """Set another limit."""
        with self._lock:
            self.limit = limit
            self._shrink(limit)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            for key in list(self._entries):
                self._drop(key)

    def items(self) -> list[tuple[Hashable, Any]]:
        """Keys and values at this moment."""
        with self._lock:
            return [(key, entry.value) for key, entry in self._entries.items()]

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.size
            entry.value = None

    def _shrink(self, size: int) -> None:
        """Forget what was used least recently until no more than `size` bytes are left."""
        for key in sorted(self._entries, key=lambda key: self._entries[key].used):
            if self.nbytes <= size:
                break
            self._drop(key)
