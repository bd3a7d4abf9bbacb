"""Connection of a store to its file; reopened after a fork, replacement of the file, damage or a full disk."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from autotune.store import database
from baselib.locks import Lock
from baselib.paths import store_path

T = TypeVar("T")

_writes = 0  # transactions by any store of this process, so that its readers notice them at once


def writes() -> int:
    """Return the number of transactions that this process has written, to any file."""
    return _writes


class Connection:
    """Connection to one file. Safe for threads and processes; a forked child opens its own connection."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, read_only: bool = False, strict: bool = False
    ) -> None:
        """Open `path` (default: `paths.store_path()`).

        A file that is damaged, foreign or of another version is moved to name.corrupt-N. Where nothing can be written,
        rows stay in memory. Each case warns once. With `read_only`, nothing is created or moved, and nothing raises: a
        missing file counts as empty, and so, with one warning, does an unreadable one.

        Raises
        ------
        NoFolderError
            `path` is None, and there is no cache folder.
        OSError
            Nothing can be written, if `strict`: here, or when rows are written.
        """
        self.path = Path(path) if path is not None else store_path()
        self.read_only = read_only
        self.trouble = ""  # why rows are only in memory
        self._strict = strict
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        self._identity: tuple[int, int] | None = None
        self._abandoned: list[sqlite3.Connection] = []
        if not read_only:
            self._open()

    def keep_in_memory(self, why: str) -> None:
        """Use no file."""
        self.read_only, self.trouble, self._connection = False, why, database.empty()

    def health(self) -> str:
        """Return "ok", or a description of the fault."""
        if self.trouble:
            return f"in memory only: {self.trouble}"
        try:
            return self._attempt(lambda c: c.execute("PRAGMA quick_check(1)").fetchone()[0], "ok")
        except (database.Unusable, sqlite3.Error, OSError) as error:
            return str(error)

    def close(self) -> None:
        """Close the file; the next query opens it again."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection | None:
        """Return the connection to the file now at the path; None if there is none and none may be created."""
        if self.trouble:
            return self._connection
        identity = database.identity(self.path)
        if self._connection is not None and self._owner != os.getpid():
            # A connection must be neither used nor closed in a forked child.
            self._abandoned.append(self._connection)
            self._connection = None
        if self._connection is None or identity != self._identity:
            self.close()
            self._owner = os.getpid()
            if self.read_only:
                self._connection = database.open_readable(self.path)
            else:
                self._connection = self._written(lambda: database.open_writable(self.path))
            self._identity = database.identity(self.path)
        return self._connection

    def _written(self, begin: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        """Return the connection that `begin` opens, or one to memory if the file cannot be written."""
        try:
            return begin()
        except (sqlite3.Error, OSError) as error:
            if self._strict:
                raise OSError(f"{self.path} cannot be written: {error}") from error
            self.trouble = str(error)
        return database.in_memory(self.path, self.trouble)

    def _do(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Return the result of `work`; `otherwise` if there is no file, or a reader cannot use it."""
        if not self.read_only:
            return self._attempt(work, otherwise)
        try:
            return self._attempt(work, otherwise)
        except (database.Unusable, sqlite3.Error, OSError) as error:
            what = f"{self.path} cannot be read ({error}); it is ignored"
            database.warn_once(what, database.identity(self.path))
            return otherwise

    def _attempt(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Return the result of `work` on the file, on a new file if it is damaged, or on memory."""
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
                damage = error
                self._connection = self._written(lambda: database.recover(self.path, damage))
                self._identity = database.identity(self.path)
            return work(self._connection)

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run `work` in a transaction; return its result."""
        global _writes

        def transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                outcome = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return outcome

        outcome = self._do(transaction, None)
        _writes += 1
        return outcome
