"""Store of tuning results: one row per (device, problem, weights, candidate), in SQLite in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from autotune.machine.device import Device
from autotune.machine.roofline import KeptRoofs, sound_roofs
from autotune.store import database
from autotune.store.claims import Claims
from autotune.store.connection import Connection, writes
from autotune.store.rows import (
    KEY,
    PROVISIONAL,
    TIMED,
    WARM,
    WEIGHTS,
    Finished,
    Row,
    RowLimits,
    Use,
    from_values,
    to_values,
)
from autotune.workload import Problem
from baselib.paths import VARIABLE, NoFolderError

__all__ = ["WEIGHTS", "Row", "Store", "Use", "shared"]

MISSED = 4096  # max. missed problems per device
STALE_PENALTY = 1e9  # seconds; above every stored score, to rank stale rows last
MAX_TEXT = 1 << 20  # max. characters of a device's fields or roofs, as JSON
SEEDS = 8  # max. candidates suggested by other devices

COLUMNS = f"{', '.join(Row._fields)}, checksum"
SELECT = f"SELECT {COLUMNS} FROM trials WHERE device = ? AND problem = ? AND weights = ?"
IS_TIMED = f"state IN {TIMED}"
RANKED = f"{SELECT} AND {IS_TIMED} ORDER BY score, estimate, candidate"
FINISH = "INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?, ?, ?, ?)"
USE = "INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
REGISTER = "INSERT INTO devices VALUES (?, ?, '{}') ON CONFLICT (device) DO UPDATE SET fields = excluded.fields"
ROOFS = "UPDATE devices SET roofs = ? WHERE device = ?"
REPLACED = f"""DELETE FROM trials WHERE {" AND ".join(f"{name} = ?" for name in KEY[:-1])}
    AND {KEY[-1]} <> ? AND kernels = ?"""  # rows with the same kernels from other sources
INSERT = f"INSERT OR REPLACE INTO trials ({COLUMNS}) VALUES ({', '.join('?' * (len(Row._fields) + 1))})"


class Store(Connection):
    """The rows of one store file. Safe for threads and processes; a forked child opens its own connection."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, read_only: bool = False, strict: bool = False
    ) -> None:
        super().__init__(path, read_only=read_only, strict=strict)
        self._claims = Claims(self.path)

    __init__.__doc__ = Connection.__init__.__doc__

    # -- queries of inference

    def best(self, device: str, problem: str, limits: RowLimits, weights: str = WARM) -> Row | None:
        """Return the best row within the limits, or None.

        Parameters
        ----------
        device, problem : str
            `Device.key` and the problem's key.
        """

        def search(connection: sqlite3.Connection) -> Row | None:
            values = connection.execute(RANKED, (device, problem, weights))
            admitted = (row for row in map(self._sound, values) if row is not None and limits.admits(row))
            return next(admitted, None)

        return self._do(search, None)

    def version(self) -> tuple[Any, ...]:
        """Return a value that changes whenever query results may have changed."""
        changes = self._fetch("PRAGMA data_version")  # before `_identity`, as it opens the file now at the path
        return self._identity, changes, writes()

    def summary(self, device: str) -> tuple[Any, ...]:
        """Return a value that is equal in two processes while a device's rows and its measured roofs are the same."""
        rows = "SELECT count(*), max(created), total(checksum), total(median) FROM trials WHERE device = ?"
        return (*self._fetch(rows, (device,)), *self._fetch("SELECT roofs FROM devices WHERE device = ?", (device,)))

    def knows(self, device: str) -> bool:
        """Whether there are rows of a device."""
        return bool(self._fetch("SELECT 1 FROM trials WHERE device = ? LIMIT 1", (device,)))

    def _fetch(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the results of a query; an empty list if there is no readable file."""
        nothing: list[tuple[Any, ...]] = []
        return self._do(lambda c: c.execute(query, values).fetchall(), nothing)

    def _sound(self, values: Sequence[Any]) -> Row | None:
        row = from_values(values)
        if row is None:
            database.warn_once(f"{self.path} contains damaged rows, which are skipped")
        return row

    # -- queries of the tuner

    def rows(self, device: str, problem: str, weights: str = WARM) -> list[Row]:
        """Return all sound rows: the timed ones best first (ties by the model's estimate), then the rejected ones."""
        values = self._fetch(SELECT, (device, problem, weights))
        sound = (row for row in map(self._sound, values) if row is not None and row.is_sound())
        return sorted(sound, key=lambda row: row.rank)

    def winners(
        self, device: str, like: str, *, sources: Collection[str], weights: str = WARM
    ) -> list[tuple[str, str]]:
        """Return (problem, best candidate) of each tuned problem whose key matches an SQL LIKE pattern.

        For a problem without current rows, it is the best stale candidate.
        """
        query = f"""SELECT problem, candidate,
                    min(score + CASE WHEN sources IN ({_marks(sources)}) THEN 0 ELSE {STALE_PENALTY} END) FROM trials
                    WHERE device = ? AND weights = ? AND problem LIKE ? AND {IS_TIMED} AND score > 0
                    GROUP BY problem ORDER BY problem"""
        values = (*sources, device, weights, like)
        return [(problem, candidate) for problem, candidate, _ in self._fetch(query, values)]

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows, all or none; they replace rows of equal device, problem, weights, candidate, and sources or
        kernels."""
        self.write(rows=rows)

    def finish(
        self,
        device: str,
        problem: str,
        *,
        effort: str,
        sources: Collection[str],
        threads: int = 1,
        weights: str = WARM,
    ) -> None:
        """Record that a problem was tuned with an effort, from these sources."""
        values = (device, problem, weights, effort, sources_hash(sources), threads, time.time())
        self._write(lambda c: c.execute(FINISH, values))

    def is_finished(
        self,
        device: str,
        problem: str,
        *,
        efforts: Collection[str],
        sources: Collection[str] | None = None,
        weights: str = WARM,
    ) -> bool:
        """Whether the problem was tuned with one of the efforts, from these sources or (None) from any."""
        query = "SELECT effort, sources FROM finished WHERE device = ? AND problem = ? AND weights = ?"
        known = self._fetch(query, (device, problem, weights))
        stated = sources and sources_hash(sources)
        return any(effort in efforts and stated in (None, own) for effort, own in known)

    def claim(self, device: str, problem: str, weights: str = WARM) -> bool:
        """Claim a problem unless another running warmup has claimed it; `release` ends the claim."""
        if self.trouble:  # the store is in memory, so no other process shares it
            return True
        return self._claims.claim(device, problem, weights)

    def release(self, device: str, problem: str, weights: str = WARM) -> None:
        """Release a claim of this store."""
        self._claims.release(device, problem, weights)

    def seeds(self, problem: str, weights: str = WARM) -> list[str]:
        """Return the best candidates for the problem on other devices or from other sources, best first."""
        best: dict[str, int] = {}
        for (device,) in self._fetch("SELECT device FROM devices"):
            timed = (row.candidate for row in self.rows(device, problem, weights) if row.is_timed)
            for place, name in enumerate(dict.fromkeys(timed)):
                best[name] = min(place, best.get(name, place))
        return sorted(best, key=best.__getitem__)[:SEEDS]

    def note(self, problems: Sequence[Problem], *, threads: int = 1, layouts: str = "") -> None:
        """Record the problems that networks use."""
        self.write(uses=[Use.of(replace(problem, threads=threads), layouts) for problem in problems])

    def problems(self, device: str) -> list[Use]:
        """Return the recorded problems with rows of the device, by network, in the networks' order."""
        query = """SELECT network, threads, layouts, label, problem, count, flops FROM uses
                   WHERE EXISTS (SELECT 1 FROM trials WHERE device = ? AND trials.problem = uses.problem)
                   ORDER BY network, threads, layouts, position"""
        uses = [Use(*values) for values in self._fetch(query, (device,))]
        return [use for use in uses if use.is_sound()]

    # -- problems that inference found untuned

    def add_missed(self, device: str, problems: Iterable[tuple[str, int]]) -> None:
        """Add to the counts of problems (key, count); beyond `MISSED`, drop the rarest and least recent ones."""
        now = time.time()
        values = [(device, key, count, now) for key, count in problems]
        add = """INSERT INTO missed VALUES (?, ?, ?, ?) ON CONFLICT (device, problem)
                 DO UPDATE SET count = count + excluded.count, seen = excluded.seen"""
        drop = """DELETE FROM missed WHERE device = ? AND problem NOT IN
                  (SELECT problem FROM missed WHERE device = ? ORDER BY count DESC, seen DESC LIMIT ?)"""

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(add, values)
            connection.execute(drop, (device, device, MISSED))

        self._write(work)

    def missed(self, device: str) -> list[tuple[str, int]]:
        """Return untuned problems and how often inference found them, the most frequent first."""
        query = "SELECT problem, count FROM missed WHERE device = ? ORDER BY count DESC, seen DESC, problem"
        return [(problem, count) for problem, count in self._fetch(query, (device,))]

    def clear_missed(self, device: str, problems: Iterable[str]) -> None:
        """Delete missed problems, as they have been tuned."""
        values = [(device, key) for key in problems]
        self._write(lambda c: c.executemany("DELETE FROM missed WHERE device = ? AND problem = ?", values))

    # -- devices

    def register(self, device: Device) -> None:
        """Store the description of a device."""
        self.write([(device, {})])

    def devices(self) -> dict[str, dict[str, Any]]:
        """Return the registered devices by key: their fields, "roofs", and the counts of finished problems, provisional
        problems, timed rows and rejected rows."""
        query = f"""SELECT device, fields, roofs,
                   (SELECT count(*) FROM finished WHERE finished.device = devices.device),
                   (SELECT count(DISTINCT problem || ' ' || weights) FROM trials
                    WHERE trials.device = devices.device AND state = '{PROVISIONAL}'),
                   (SELECT count(*) FROM trials WHERE trials.device = devices.device AND {IS_TIMED}),
                   (SELECT count(*) FROM trials WHERE trials.device = devices.device AND state = 'rejected')
                   FROM devices ORDER BY device"""
        counts = ("finished", "provisional", "timed", "rejected")
        return {
            key: {**_object(text), "roofs": sound_roofs(_object(roofs)), **dict(zip(counts, numbers, strict=True))}
            for key, text, roofs, *numbers in self._fetch(query)
        }

    # -- whole content, for wisdom

    def tuned(self, device: str) -> list[tuple[str, str]]:
        """Return every (problem, weights) of which the device has rows."""
        query = "SELECT DISTINCT problem, weights FROM trials WHERE device = ?"
        return [(problem, weights) for problem, weights in self._fetch(query, (device,))]

    def finished(self, device: str) -> list[Finished]:
        """Return the tuned problems of the device, with their efforts."""
        query = "SELECT * FROM finished WHERE device = ?"
        records = (Finished(*values) for values in self._fetch(query, (device,)))
        return [record for record in records if record.is_sound()]

    def write(
        self,
        devices: Iterable[tuple[Device, KeptRoofs]] = (),
        rows: Iterable[Row] = (),
        finished: Iterable[Finished] = (),
        uses: Iterable[Use] = (),
    ) -> None:
        """Write devices with their roofs, rows, efforts and uses, all or none; empty roofs keep the stored ones."""
        known = [(device.key, json.dumps(device.to_dict()), json.dumps(roofs)) for device, roofs in devices]
        rows = [*rows]
        values = _values(rows)
        same_kernels = [(*(getattr(row, name) for name in KEY), row.kernels) for row in rows if row.kernels]

        def work(connection: sqlite3.Connection) -> None:
            for key, fields, roofs in known:
                connection.execute(REGISTER, (key, fields))
                if roofs != "{}":
                    connection.execute(ROOFS, (roofs, key))
            connection.executemany(INSERT, values)
            connection.executemany(REPLACED, same_kernels)
            connection.executemany(FINISH, map(astuple, finished))
            connection.executemany(USE, ((*astuple(use), position) for position, use in enumerate(uses)))

        self._write(work)

    def prune(self, device: str, sources: Collection[str] = (), *, keep: bool = True) -> int:
        """Delete useless rows of the device, and return their number.

        These are rows of other sources that were rejected, or whose problem was tuned since. With `keep=False`, delete
        the device with all its rows.
        """

        def work(connection: sqlite3.Connection) -> int:
            if keep:
                connection.execute(
                    "DELETE FROM finished WHERE device = ? AND sources <> ?", (device, sources_hash(sources))
                )
                return connection.execute(
                    f"""DELETE FROM trials WHERE device = ? AND sources NOT IN ({_marks(sources)})
                        AND (state = 'rejected' OR created <
                             (SELECT max(created) FROM trials AS current
                              WHERE current.device = trials.device AND current.problem = trials.problem
                              AND current.weights = trials.weights AND current.{IS_TIMED}
                              AND current.sources IN ({_marks(sources)})))""",
                    (device, *sources, *sources),
                ).rowcount
            for table in ("finished", "missed", "devices"):
                connection.execute(f"DELETE FROM {table} WHERE device = ?", (device,))
            return connection.execute("DELETE FROM trials WHERE device = ?", (device,)).rowcount

        return self._write(work) or 0

    def shrink(self) -> None:
        """Return the space of deleted rows to the file system."""
        self._do(lambda c: c.execute("VACUUM"), None)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _values(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    now = time.time()
    return [to_values(row._replace(created=row.created or now)) for row in rows]


def _marks(values: Collection[str]) -> str:
    return ", ".join("?" * len(values))


def sources_hash(sources: Collection[str]) -> str:
    """Return one hash of the hashes of all sources."""
    return hashlib.sha256("\n".join(sorted(sources)).encode()).hexdigest()[:16]


def _object(text: Any) -> dict[str, Any]:
    """Parse a JSON object; return an empty one if the text is damaged or too long."""
    try:
        content = json.loads(text) if len(text) <= MAX_TEXT else None
    except (TypeError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


NOWHERE = Path(os.devnull)  # the path of a store without a file
_shared: dict[tuple[str | None, bool], Store] = {}
_forked: list[dict[tuple[str | None, bool], Store]] = []


def shared(*, read_only: bool = True) -> Store:
    """Return the store of this process for inference; it follows CPUCONV_CACHE_DIR.

    With `read_only=False`, return the store that strategy "profile" writes. Without a cache folder, both are one store
    in memory.
    """
    wanted = os.environ.get(VARIABLE), read_only
    store = _shared.get(wanted)
    if store is None:
        try:
            store = _shared.setdefault(wanted, Store(read_only=read_only))
        except NoFolderError as error:
            made = Store(NOWHERE, read_only=True)
            made.keep_in_memory(str(error))
            made = _shared.setdefault((wanted[0], False), made)
            store = _shared.setdefault((wanted[0], True), made)
    if store.path == NOWHERE and not read_only:
        database.warn_once(f"{store.trouble}; results are stored in memory only")
    return store


def _leave_to_parent() -> None:
    # Keep references, so that they are not closed: a child shares its parent's connections and locks.
    _forked.append(dict(_shared))
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
