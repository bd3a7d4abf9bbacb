"""The layers of what is known of a problem: a pinned file of wisdom, the user's store, tables that are shipped.

The first layer that has a row within the limits decides. Nothing here raises: a file that cannot be used is passed
over with one warning.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from autotune import database, store
from autotune.rows import REGIMES, WARM, Limits, Row, limits_of
from autotune.wisdom import Wisdom, WisdomError, read

PINNED = "CPUCONV_WISDOM"  # the variable that names a file of wisdom
LAYERS = PINNED_LAYER, STORE_LAYER, SHIPPED_LAYER = ("pinned", "store", "shipped")


class Found(NamedTuple):
    """A row and the layer that it is from, one of `LAYERS`."""

    row: Row
    layer: str


class Book:
    """The wisdom of one file, read when first asked and again when the file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wisdom: Wisdom | None = None
        self._state: tuple[int, int, int] | None = None
        self._asked = 0.0
        self._lock = threading.Lock()

    def rows(self, device: str, problem: str, regime: str = WARM) -> list[Row]:
        """The problem's rows, as `Store.rows`."""
        return self._read().rows.get((device, problem, regime), [])

    def find(self, device: str, problem: str, regime: str, limits: Limits) -> Row | None:
        """As `Store.find`."""
        return next((row for row in self.rows(device, problem, regime) if limits.admits(row)), None)

    def _read(self) -> Wisdom:
        now = time.monotonic()
        if self._wisdom is not None and now < self._asked + store.RECHECK_SECONDS:
            return self._wisdom
        with self._lock:
            state = _state(self.path)
            if self._wisdom is None or state != self._state:
                self._wisdom, self._state = self._load(), state
            self._asked = now
            return self._wisdom

    def _load(self) -> Wisdom:
        try:
            wisdom = read(self.path)
        except (WisdomError, OSError) as error:
            database.warn_once(f"{error}; nothing is taken from it")
            return Wisdom()
        for rows in wisdom.rows.values():
            rows.sort(key=lambda row: row.rank)
        return wisdom


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Layers:
    """What a process may ask of all layers."""

    def __init__(self, tables: Path | None = None, kept: store.Store | None = None) -> None:
        """Look into these layers.

        Arguments:
            tables: the folder of shipped tables, one `<device>.json` each (`autotune export --device-table`).
            kept: the store to ask; None: the one that inference shares.
        """
        self._tables = tables
        self._kept = kept
        self._asked: dict[tuple[str, str | None, store.Store], list[tuple[str, Book | store.Store]]] = {}

    def lookup(
        self,
        device: str,
        problem: str,
        *,
        sources: Collection[str],
        regimes: Iterable[str] = REGIMES,
        workspace_limit: int | None = None,
        accuracies: Iterable[str] | None = None,
        prefix: str = "",
        read_only: bool = True,
    ) -> Found | None:
        """The best row of the first layer that has one within the limits, of the first regime that any layer knows.

        Arguments are those of `Store.best`; `read_only=False` asks the store that this process writes.
        """
        limits = limits_of(sources, workspace_limit, accuracies, prefix)
        asked = self._layers(device, read_only)
        for regime in regimes:
            for name, layer in asked:
                row = layer.find(device, problem, regime, limits)
                if row is not None:
                    return Found(row, name)
        return None

    def rows(self, device: str, problem: str, sources: Collection[str], regime: str = WARM) -> dict[str, Found]:
        """Every candidate's current row, from the first layer that has one."""
        found: dict[str, Found] = {}
        for name, layer in self._layers(device):
            for row in layer.rows(device, problem, regime):
                if row.sources in sources:
                    found.setdefault(row.candidate, Found(row, name))
        return found

    def all_rows(self, device: str, problem: str, sources: Collection[str]) -> list[Found]:
        """`rows` of every regime, in the order in which a look-up asks them."""
        return [each for regime in REGIMES for each in self.rows(device, problem, sources, regime).values()]

    def _layers(self, device: str, read_only: bool = True) -> list[tuple[str, Book | store.Store]]:
        pinned = os.environ.get(PINNED)
        kept = self._kept or store.shared(read_only=read_only)
        asked = self._asked.get((device, pinned, kept))
        if asked is None:
            asked = self._asked[device, pinned, kept] = list(self._make(device, pinned, kept))
        return asked

    def _make(self, device: str, pinned: str | None, kept: store.Store) -> Iterator[tuple[str, Book | store.Store]]:
        if pinned:
            yield PINNED_LAYER, Book(Path(pinned))
        yield STORE_LAYER, kept
        if self._tables is not None and (table := self._tables / f"{device}.json").exists():
            yield SHIPPED_LAYER, Book(table)
