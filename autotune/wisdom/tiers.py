"""Tiers of tuning results: a pinned wisdom file, the user's store, shipped tables.

The first tier that has a row within the limits decides. Results are cached until a tier changes. Changes are checked
once per second, and immediately after this process has written. Nothing here raises: an unusable file is skipped with
one warning.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from autotune.store import database, store
from autotune.store.connection import writes
from autotune.store.rows import PROVISIONAL, WARM, WEIGHTS, Row, RowLimits
from autotune.wisdom.document import Wisdom, WisdomError, read
from baselib.locks import Lock

PINNED = "CPUCONV_WISDOM"  # environment variable that names a wisdom file
TIERS = PINNED_TIER, STORE_TIER, SHIPPED_TIER = ("pinned", "store", "shipped")
OLDER_KERNELS = "older kernels"  # remark on a row that is not current


class Found(NamedTuple):
    """A row, its tier (one of `TIERS`), and whether its kernels are current."""

    row: Row
    tier: str
    current: bool = True

    @property
    def remark(self) -> str | None:
        """Return a remark on the row for readers, or None."""
        if not self.current:
            return OLDER_KERNELS
        return PROVISIONAL if self.row.state == PROVISIONAL else None


Winners = list[tuple[str, str]]  # problem, candidate


class Tier(Protocol):
    """The interface of a tier, as of `Store`."""

    def rows(self, device: str, problem: str, weights: str = WARM) -> list[Row]: ...
    def best(self, device: str, problem: str, limits: RowLimits, weights: str = WARM) -> Row | None: ...
    def winners(self, device: str, like: str, *, sources: Collection[str], weights: str = WARM) -> Winners: ...
    def version(self) -> tuple[Any, ...]: ...
    def summary(self, device: str) -> tuple[Any, ...] | None: ...
    def knows(self, device: str) -> bool: ...
    def tuned(self, device: str) -> list[tuple[str, str]]: ...


class WisdomFile:
    """The wisdom of one file; read on demand, and again when `version` finds the file changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wisdom: Wisdom | None = None
        self._state: tuple[Any, ...] = ()
        self._lock = Lock()

    def rows(self, device: str, problem: str, weights: str = WARM) -> list[Row]:
        """Return the problem's rows, as `Store.rows`."""
        return self._read().rows.get((device, problem, weights), [])

    def best(self, device: str, problem: str, limits: RowLimits, weights: str = WARM) -> Row | None:
        """As `Store.best`."""
        return next((row for row in self.rows(device, problem, weights) if limits.admits(row)), None)

    def winners(self, device: str, like: str, *, sources: Collection[str], weights: str = WARM) -> Winners:
        """As `Store.winners`."""
        limits, pattern = RowLimits(frozenset(sources)), re.compile(".*".join(map(re.escape, like.split("%"))))
        winners = []
        for key, rows in self._read().rows.items():
            if (key[0], key[2]) == (device, weights) and pattern.fullmatch(key[1]):
                timed = [row for row in rows if limits.admits_any(row)]
                if timed:
                    winners.append((key[1], min(timed, key=lambda row: not limits.admits(row)).candidate))
        return sorted(winners)

    def tuned(self, device: str) -> list[tuple[str, str]]:
        """As `Store.tuned`."""
        return [(problem, weights) for owner, problem, weights in self._read().rows if owner == device]

    def version(self) -> tuple[Any, ...]:
        """As `Store.version`; drops the content if the file has changed."""
        with self._lock:
            state = _state(self.path)
            if state != self._state:
                self._wisdom, self._state = None, state
            return state

    def summary(self, device: str) -> tuple[Any, ...]:
        """As `Store.summary`."""
        return (str(self.path), *_state(self.path))

    def knows(self, device: str) -> bool:
        """As `Store.knows`, but True for a file that was not read yet."""
        wisdom = self._wisdom
        return wisdom is None or any(key[0] == device for key in wisdom.rows)

    def _read(self) -> Wisdom:
        with self._lock:
            if self._wisdom is None:
                self._state = _state(self.path)
                self._wisdom = self._load()
            return self._wisdom

    def _load(self) -> Wisdom:
        try:
            wisdom = read(self.path)
        except (WisdomError, OSError) as error:
            database.warn_once(f"{error}; it is ignored")
            return Wisdom()
        for rows in wisdom.rows.values():
            rows.sort(key=lambda row: row.rank)
        return wisdom


def _state(path: Path) -> tuple[Any, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass
class _Look:
    """The tiers at the last check for changes, and the results cached since."""

    tiers: list[tuple[str, Tier]]  # tiers that have rows of the device
    state: list[tuple[Tier, tuple[Any, ...]]]
    until: float  # time of the next check, by `time.monotonic()`
    writes: int  # number of writes of this process at the check
    answers: dict[tuple[str, RowLimits], Found | None] = field(default_factory=dict)
    winners: dict[tuple[str, frozenset[str], str], Winners] = field(default_factory=dict)
    problems: frozenset[str] | None = None  # problems with rows; None until requested


class Tiers:
    """Queries of all tiers.

    Attributes
    ----------
    recheck_seconds : float
        Interval in seconds between checks for other processes' results or another pinned file.
    max_answers : int
        Max. cached results.
    """

    recheck_seconds = 1.0
    max_answers = 4096

    def __init__(self, tables: Path | None = None, kept: store.Store | None = None) -> None:
        """Use these tiers.

        Parameters
        ----------
        tables : Path or None
            The folder of shipped tables, one `<device>.json` each (`autotune export --device-table`).
        kept : Store or None
            The store to query; None: the shared one for inference.
        """
        self._tables = tables
        self._kept = kept
        self._files: dict[Path, WisdomFile] = {}
        self._looks: dict[tuple[str, bool], _Look] = {}

    def know(self, device: str, *, read_only: bool = True) -> bool:
        """Whether a tier has rows of a device; `read_only` as for `lookup`."""
        return bool(self._look(device, read_only).tiers)

    def lookup(self, device: str, problem: str, limits: RowLimits, *, read_only: bool = True) -> Found | None:
        """Return the best row within the limits, of the first tier that has one, for the first weights with any.

        `read_only=False` queries the store that this process writes.
        """
        look, request = self._look(device, read_only), (problem, limits)
        try:
            return look.answers[request]
        except KeyError:
            self._make_room(look.answers)
            answer = look.answers[request] = _search(look.tiers, device, *request)
            return answer

    def older(self, device: str, problem: str, limits: RowLimits) -> list[Found]:
        """Return rows of other kernels that no current row has replaced, best first.

        The problem was not tuned since. Rows of that tuning that are still current are slower than these, or there are
        none. Callers should verify these candidates, as their times may have changed.
        """
        tiers = self._look(device).tiers
        for weights in limits.weights:
            for name, tier in tiers:
                known = tier.rows(device, problem, weights)
                if not known:  # the case for most problems
                    continue
                best = self.lookup(device, problem, limits)
                if best is None or (best.row.weights, best.tier) == (weights, name):
                    rows = _older(known, limits, best and best.row)
                    if rows:
                        return [Found(row, name, current=False) for row in rows]
        return []

    def rows(self, device: str, problem: str, limits: RowLimits, weights: str = WARM) -> dict[str, Found]:
        """Return each candidate's row from the first tier that has one within the limits, or else a stale row that
        nothing has replaced."""
        current: dict[str, Found] = {}
        older: dict[str, Found] = {}
        for name, tier in self._look(device).tiers:
            rows = tier.rows(device, problem, weights)
            for row in rows:
                if limits.is_current(row):
                    current.setdefault(row.candidate, Found(row, name))
            for row in _older(rows, limits):
                older.setdefault(row.candidate, Found(row, name, current=False))
        return older | current

    def all_rows(self, device: str, problem: str, limits: RowLimits) -> list[Found]:
        """Return `rows` of all kinds of weights, in look-up order."""
        return [found for weights in WEIGHTS for found in self.rows(device, problem, limits, weights).values()]

    def winners(self, device: str, like: str, sources: Collection[str], weights: str = WARM) -> Winners:
        """As `Store.winners`, for each problem from the first tier that has it."""
        look, request = self._look(device), (like, frozenset(sources), weights)
        answer = look.winners.get(request)
        if answer is None:
            winners: dict[str, str] = {}
            for _, tier in look.tiers:
                for problem, candidate in tier.winners(device, like, sources=sources, weights=weights):
                    winners.setdefault(problem, candidate)
            self._make_room(look.winners)
            answer = look.winners[request] = sorted(winners.items())
        return answer

    def problems(self, device: str) -> frozenset[str]:
        """Return the problems of which any tier has rows, current or not."""
        look = self._look(device)
        if look.problems is None:
            look.problems = frozenset(problem for _, tier in look.tiers for problem, _ in tier.tuned(device))
        return look.problems

    def state(self, device: str) -> tuple[Any, ...] | None:
        """Return a value that is equal in two processes while all tiers have equal rows of a device; None: unknown."""
        told = [tier.summary(device) for tier, _ in self._look(device).state]
        return None if None in told else tuple(told)

    def forget(self) -> None:
        """Check the tiers again at the next query."""
        self._looks.clear()

    def _look(self, device: str, read_only: bool = True) -> _Look:
        now, seen = time.monotonic(), self._looks.get((device, read_only))
        if seen is not None and now < seen.until and seen.writes == writes():
            return seen
        written = writes()  # before the tiers are queried, so the next query sees concurrent writes
        tiers = list(self._make(device, read_only))
        state = [(tier, tier.version()) for _, tier in tiers]
        knowing = [(name, tier) for name, tier in tiers if tier.knows(device)]
        look = _Look(knowing, state, now + self.recheck_seconds, written)
        if seen is not None and seen.state == look.state:
            look.answers, look.winners, look.problems = seen.answers, seen.winners, seen.problems
        self._looks[device, read_only] = look
        return look

    def _make(self, device: str, read_only: bool) -> Iterator[tuple[str, Tier]]:
        if pinned := os.environ.get(PINNED):
            yield PINNED_TIER, self._file(Path(pinned))
        yield STORE_TIER, self._kept or store.shared(read_only=read_only)
        if self._tables is not None and (table := self._tables / f"{device}.json").exists():
            yield SHIPPED_TIER, self._file(table)

    def _file(self, path: Path) -> WisdomFile:
        return self._files.setdefault(path, WisdomFile(path))

    def _make_room(self, answers: dict[Any, Any]) -> None:
        if len(answers) >= self.max_answers:
            answers.clear()


def _older(rows: Sequence[Row], limits: RowLimits, best: Row | None = None) -> list[Row]:
    """Return rows of other kernels within the limits that were measured no earlier than the newest row from current
    sources, and rank before `best`."""
    tuned = max((row.created for row in rows if row.is_timed and row.sources in limits.sources), default=0.0)
    return [
        row
        for row in rows
        if row.sources not in limits.sources
        and limits.admits_any(row)
        and row.created >= tuned
        and (best is None or row.rank < best.rank)
        and not limits.same_kernels(row)  # last, as it is slow
    ]


def _search(tiers: Iterable[tuple[str, Tier]], device: str, problem: str, limits: RowLimits) -> Found | None:
    for weights in limits.weights:
        for name, tier in tiers:
            row = tier.best(device, problem, limits, weights)
            if row is not None:
                return Found(row, name)
    return None
