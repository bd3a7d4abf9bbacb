"""What was found: one row for each (device, problem, candidate), in SQLite under the user's cache folder."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from autotune import database
from autotune.device import Device
from autotune.paths import VARIABLE, store_path
from autotune.workload import Problem

T = TypeVar("T")

RECHECK_SECONDS = 1.0  # how soon a look-up sees what another process has found
REMEMBERED = 4096  # answers that a reader keeps at hand


class Row(NamedTuple):
    """One candidate for one problem on one device.

    state: "ok", or "rejected" with its reason.  median, spread: seconds, of `count` samples, put in terms of the
    winner's by the rounds that both ran in.  score: seconds to rank by: the median, but unless a second race
    confirmed the winner, not below that of the model's choice.
    error, error_limit: relative to the largest output.  workspace: bytes.  bound, estimate: seconds, the model's.
    """

    device: str
    problem: str
    candidate: str
    sources: str
    state: Literal["ok", "rejected"]
    reason: str = ""
    median: float = math.nan
    spread: float = math.nan
    count: int = 0
    score: float = math.nan
    error: float = math.nan
    error_limit: float = math.nan
    workspace: int = 0
    accuracy: str = "standard"
    bound: float = 0.0
    estimate: float = math.nan
    created: float = 0.0  # seconds since 1970, set when written

    def is_sound(self) -> bool:
        """Whether the values are such as a tuner writes (a damaged file may hold anything)."""
        if self.state != "ok":
            return self.state == "rejected"
        seconds = (self.median, self.score)
        return (
            isinstance(self.candidate, str)
            and isinstance(self.workspace, int)
            and all(isinstance(value, float) and 0.0 < value < math.inf for value in seconds)
        )


@dataclass(frozen=True)
class Use:
    """A problem as a network asks for it. layouts: what was asked of the workload, as text."""

    network: str
    threads: int
    layouts: str
    label: str
    problem: str
    count: int
    flops: float


SELECT = f"SELECT {', '.join(Row._fields)} FROM trials WHERE device = ? AND problem = ?"
INSERT = f"INSERT OR REPLACE INTO trials ({', '.join(Row._fields)}) VALUES ({', '.join('?' * len(Row._fields))})"
BEST = f"""{SELECT} AND sources = ? AND state = 'ok' AND typeof(median) = 'real' AND median > 0
    AND typeof(score) = 'real' AND score > 0 AND typeof(workspace) = 'integer' AND workspace <= ?
    AND (? IS NULL OR instr(?, ' ' || accuracy || ' ')) ORDER BY score, estimate, candidate LIMIT 1"""
ANY_WORKSPACE = (1 << 63) - 1

_writes = 0  # by any store of this process, so that its readers need not wait to see them


def _row(values: Sequence[Any]) -> Row:
    # SQLite has no NaN: it gives it back as NULL.
    return Row(*(math.nan if value is None else value for value in values)) if None in values else Row(*values)


class Store:
    """The rows of one file. Safe for threads and processes; a child after fork opens its own connection."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, read_only: bool = False) -> None:
        """Open `path` (default: `paths.store_path()`).

        A file that is damaged, foreign or newer is moved to name.corrupt-N; where nothing can be written the rows
        are kept in memory; each with one warning. `read_only` creates and moves nothing and does not raise: a missing
        file is empty, and so, with one warning, is one that cannot be read.
        """
        self.path = Path(path) if path is not None else store_path()
        self.read_only = read_only
        self.trouble = ""  # why the rows are in memory only
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        self._identity: tuple[int, int] | None = None
        self._abandoned: list[sqlite3.Connection] = []
        self._memo: dict[tuple[Any, ...], Row | None] = {}
        self._memo_of: tuple[Any, ...] = ()
        self._memo_writes = -1
        self._recheck = 0.0
        if not read_only:
            self._open()

    # -- what inference asks

    def lookup(
        self,
        device: str,
        problem: str,
        *,
        sources: str,
        workspace_limit: int | None = None,
        accuracies: Iterable[str] | None = None,
    ) -> Row | None:
        """As `best`, from memory where possible: what inference asks of a `shared()` store, which does not raise."""
        accuracies = None if accuracies is None else tuple(accuracies)
        request = (device, problem, sources, workspace_limit, accuracies)
        now = time.monotonic()
        if self._memo_writes != _writes or now >= self._recheck:
            self._refresh(now)
        if request not in self._memo:
            self._memo[request] = self.best(
                device, problem, sources=sources, workspace_limit=workspace_limit, accuracies=accuracies
            )
        return self._memo[request]

    def best(
        self,
        device: str,
        problem: str,
        *,
        sources: str,
        workspace_limit: int | None = None,
        accuracies: Iterable[str] | None = None,
    ) -> Row | None:
        """The best row that keeps the limits, or None.

        Arguments:
            device: `Device.key`.  problem: its key.  sources: hash of the sources; rows of others are stale.
            workspace_limit: bytes.  accuracies: classes to choose from, None for all.
        """
        limit = ANY_WORKSPACE if workspace_limit is None else workspace_limit
        classes = None if accuracies is None else f" {' '.join(accuracies)} "
        values = (device, problem, sources, limit, classes, classes)
        found = self._do(lambda c: c.execute(BEST, values).fetchone(), None)
        return None if found is None else _row(found)

    # -- what the tuner asks

    def rows(self, device: str, problem: str) -> list[Row]:
        """Every sound row: the timed ones best first (ties by the model's estimate), then the rejected ones."""
        values = self._do(lambda c: c.execute(SELECT, (device, problem)).fetchall(), [])
        return sorted(
            (row for row in map(_row, values) if row.is_sound()),
            key=lambda row: (row.state != "ok", row.score if row.state == "ok" else 0.0, row.estimate, row.candidate),
        )

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows, all or none, over those of the same device, problem and candidate."""
        now = time.time()
        values = [row._replace(created=row.created or now) for row in rows]
        self._write(lambda c: c.executemany(INSERT, values))

    def finish(self, device: str, problem: str, *, effort: str, sources: str, threads: int = 1) -> None:
        """Note that a problem was tuned with an effort."""
        values = (device, problem, effort, sources, threads, time.time())
        self._write(lambda c: c.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?, ?, ?)", values))

    def is_finished(self, device: str, problem: str, *, efforts: Collection[str], sources: str) -> bool:
        """Whether the problem was tuned with one of the efforts, from these sources."""
        query = "SELECT effort FROM finished WHERE device = ? AND problem = ? AND sources = ?"
        found = self._do(lambda c: c.execute(query, (device, problem, sources)).fetchall(), [])
        return any(effort in efforts for (effort,) in found)

    def note(self, problems: Sequence[Problem], *, threads: int = 1, layouts: str = "") -> None:
        """Remember which networks ask for which problems."""
        values = [
            (p.network, threads, layouts, p.label, p.key, p.count, p.flops, position)
            for position, p in enumerate(problems)
        ]
        self._write(lambda c: c.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values))

    def problems(self, device: str) -> list[Use]:
        """The noted problems that the device has rows of, network by network, in their networks' order."""
        query = """SELECT network, threads, layouts, label, problem, count, flops FROM uses
                   WHERE EXISTS (SELECT 1 FROM trials WHERE device = ? AND trials.problem = uses.problem)
                   ORDER BY network, threads, layouts, position"""
        return [Use(*values) for values in self._do(lambda c: c.execute(query, (device,)).fetchall(), [])]

    # -- devices

    def register(self, device: Device) -> None:
        """Remember what a device is."""
        query = """INSERT INTO devices VALUES (?, ?, '{}')
                   ON CONFLICT (device) DO UPDATE SET fields = excluded.fields"""
        self._write(lambda c: c.execute(query, (device.key, json.dumps(device.to_dict()))))

    def set_roofs(self, device: str, roofs: dict[str, float]) -> None:
        """Remember the measured roofs of a registered device."""
        values = (json.dumps(roofs), device)
        self._write(lambda c: c.execute("UPDATE devices SET roofs = ? WHERE device = ?", values))

    def devices(self) -> dict[str, dict[str, Any]]:
        """The registered devices by key, each with its fields, "roofs", and counts of problems and rows."""
        query = """SELECT device, fields, roofs,
                   (SELECT count(*) FROM finished WHERE finished.device = devices.device),
                   (SELECT count(*) FROM trials WHERE trials.device = devices.device AND state = 'ok'),
                   (SELECT count(*) FROM trials WHERE trials.device = devices.device AND state = 'rejected')
                   FROM devices ORDER BY device"""
        found = self._do(lambda c: c.execute(query).fetchall(), [])
        counts = ("finished", "timed", "rejected")
        return {
            key: {**json.loads(text), "roofs": json.loads(roofs), **dict(zip(counts, numbers, strict=True))}
            for key, text, roofs, *numbers in found
        }

    def health(self) -> str:
        """ "ok", or what is wrong."""
        if self.trouble:
            return f"in memory only: {self.trouble}"
        try:
            return self._attempt(lambda c: c.execute("PRAGMA quick_check(1)").fetchone()[0], "ok")
        except (database.Unusable, sqlite3.Error, OSError) as error:
            return str(error)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the store opens it again when asked."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    # -- the connection

    def _open(self) -> sqlite3.Connection | None:
        """The connection to the file that lies at the path now; None if there is none and none may be made."""
        if self.trouble:
            return self._connection
        identity = database.identity(self.path)
        if self._connection is not None and self._owner != os.getpid():
            # A connection must neither be used nor closed in a forked child.
            self._abandoned.append(self._connection)
            self._connection = None
        if self._connection is None or identity != self._identity:
            self.close()
            self._owner = os.getpid()
            if self.read_only:
                self._connection = database.open_readable(self.path)
            else:
                self._connection, self.trouble = database.open_writable(self.path)
            self._identity = database.identity(self.path)
        return self._connection

    def _do(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """The outcome of `work`; `otherwise` if there is no file, or a reader cannot use it."""
        if not self.read_only:
            return self._attempt(work, otherwise)
        try:
            return self._attempt(work, otherwise)
        except (database.Unusable, sqlite3.Error, OSError) as error:
            database.warn_once(f"{self.path} cannot be read ({error}); nothing is taken from it")
            return otherwise

    def _attempt(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """The outcome of `work` on the file, on its successor if it proves damaged, or on memory."""
        with self._lock:
            connection = self._open()
            if connection is None:
                return otherwise
            try:
                return work(connection)
            except sqlite3.DatabaseError as error:
                corrupt = database.is_corrupt(error)
                if self.read_only or self.trouble or not (corrupt or isinstance(error, sqlite3.OperationalError)):
                    raise
                self.close()
                self._connection, self.trouble = database.recover(self.path, error)
                self._identity = database.identity(self.path)
            return work(self._connection)

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        global _writes

        def transaction(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

        self._do(transaction, None)
        _writes += 1

    def _refresh(self, now: float) -> None:
        """Forget what is remembered if the file has changed since."""
        with self._lock:
            version = self._do(lambda c: c.execute("PRAGMA data_version").fetchone(), ())
            now_of = (self._identity, version, _writes)
            if now_of != self._memo_of or len(self._memo) > REMEMBERED:
                self._memo = {}
            self._memo_of, self._memo_writes, self._recheck = now_of, now_of[-1], now + RECHECK_SECONDS


_shared: dict[tuple[str | None, bool], Store] = {}
_forked: list[dict[tuple[str | None, bool], Store]] = []


def shared(*, read_only: bool = True) -> Store:
    """The store of this process that inference asks; it follows CPUCONV_CACHE_DIR.

    Arguments:
        read_only: whether to share the one that never writes, or (strategy "profile") the one that may.
    """
    wanted = os.environ.get(VARIABLE), read_only
    store = _shared.get(wanted)
    if store is None:
        store = _shared.setdefault(wanted, Store(read_only=read_only))
    return store


def _leave_to_parent() -> None:
    # Kept from being closed: the connections and locks of a forked child are its parent's.
    _forked.append(dict(_shared))
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
