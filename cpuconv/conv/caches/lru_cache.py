"""Cache with a limit in bytes; the least recently used entries are evicted first."""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable
from typing import Any

from baselib.locks import Lock

_MAX_LIMIT = 2 << 30  # maximum default limit, in bytes
_SHARE = 0.25  # maximum fraction of the machine's memory
_EVICTED = 0.1  # fraction of the limit that is evicted in one pass, so that entries are rarely sorted
_clock = itertools.count()


def default_limit() -> int:
    """The default limit in bytes: a quarter of the machine's memory, at most 2 GiB."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return _MAX_LIMIT
    return min(_MAX_LIMIT, int(_SHARE * memory))


class Entry:
    """A cached value of `size` bytes; the value is None after eviction."""

    __slots__ = ("size", "used", "value")

    def __init__(self, value: Any, size: int) -> None:
        self.value, self.size, self.used = value, size, next(_clock)

    def use(self) -> Any:
        """Return the value, and mark it as most recently used."""
        self.used = next(_clock)
        return self.value


class LruCache:
    """A mapping with a limit on the total size of its values; several threads may use it concurrently.

    Attributes
    ----------
    limit : int
        Maximum total size of values, in bytes; a larger value is not cached.
    nbytes : int
        Total size of values, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes = limit, 0
        self._entries: dict[Hashable, Entry] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any | None:
        """Return the value, and mark it as most recently used; None if it is not cached."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = next(_clock)
        return entry.value

    def size_of(self, key: Hashable) -> int | None:
        """Recorded size of a value, in bytes; None if it is not cached."""
        entry = self._entries.get(key)
        return None if entry is None else entry.size

    def put(self, key: Hashable, value: Any, size: int) -> Entry | None:
        """Cache a value of `size` bytes, and evict others until it fits; None if it exceeds the limit."""
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
        """Remove one value, if it is cached."""
        with self._lock:
            self._drop(key)

    def resize(self, limit: int) -> None:
        """Change the limit, in bytes."""
        with self._lock:
            self.limit = limit
            self._shrink(limit)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            for key in list(self._entries):
                self._drop(key)

    def items(self) -> list[tuple[Hashable, Any]]:
        """A snapshot of keys and values."""
        with self._lock:
            return [(key, entry.value) for key, entry in self._entries.items()]

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.size
            entry.value = None

    def _shrink(self, size: int) -> None:
        """Evict the least recently used values until at most `size` bytes are left."""
        for key in sorted(self._entries, key=lambda key: self._entries[key].used):
            if self.nbytes <= size:
                break
            self._drop(key)
