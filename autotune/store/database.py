"""The store's SQLite file: opened, set aside when it cannot be used, replaced by memory when it cannot be written.

A store of the version before is upgraded by the first writer. A file that is damaged, another program's or a store of
any other version is renamed to name.corrupt-N by a writer, which begins a new store, and passed over by a reader; each
with one warning.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from autotune.files import check_regular, open_regular
from autotune.paths import is_cached
from autotune.store.mounts import is_remote
from autotune.store.rows import checksum
from autotune.store.schema import FORMER_SCHEMA, FORMER_VERSION, SCHEMA, STATEMENTS, UPGRADE, VERSION

APPLICATION = 0x43505543  # "CPUC" in the file's header: whose file it is
MAGIC = b"SQLite format 3\0"
JOURNALS = ("-wal", "-shm", "-journal")  # end the names of files beside the store's
BUSY_SECONDS = 30.0
ATTEMPTS = 3


class StoreWarning(UserWarning):
    """The store on disk could not be used as it is; the message says what was done."""


class Unusable(Exception):
    """A file that is no store of this version; the message says why."""


def open_writable(path: Path) -> sqlite3.Connection:
    """Open or create the file; a file that is no store of this version is set aside first.

    Raises
    ------
    sqlite3.Error, OSError
        It cannot be opened or created.
    """
    for _ in range(ATTEMPTS):
        seen = identity(path)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # what others may write to is not trusted
            _check_header(path)
            return _create(str(path), _journal(path))
        except Unusable as error:
            # Another process may have replaced the file in the meantime: then look again.
            if seen == identity(path):
                aside = set_aside(path)
                warn_once(f"{path} is {error}; moved to {aside.name}, a new store is begun", seen)
    raise OSError("its file keeps changing")


def open_readable(path: Path) -> sqlite3.Connection | None:
    """Open the file for reading only, never creating or moving it; None if there is none, or an empty one.

    Raises
    ------
    Unusable, sqlite3.Error
        It is no store of this version, or cannot be read.
    """
    if not os.path.lexists(path):  # or it lies in a home that this user may not enter
        return None
    _check_header(path)
    try:
        return _open(_uri(path, "mode=ro"))
    except sqlite3.OperationalError:
        # The write-ahead log of a read-only folder cannot be opened: read the main file alone.
        return _open(_uri(path, "immutable=1"))


def recover(path: Path, error: sqlite3.DatabaseError) -> sqlite3.Connection:
    """What to go on with after an error in use: a new file, if the old one is damaged.

    Raises
    ------
    sqlite3.Error, OSError
        The error, if it is another one; or no new file can be begun.
    """
    if not is_corrupt(error):
        raise error
    seen = identity(path)
    aside = set_aside(path)
    warn_once(f"{path} is damaged ({error}); moved to {aside.name}, a new store is begun", seen)
    return open_writable(path)


def in_memory(path: Path, why: str) -> sqlite3.Connection:
    """A store in memory, filled from the file as far as that can be read; warns once."""
    warn_once(f"{path} cannot be written ({why}); what is tuned is kept in memory only")
    connection = empty()
    with contextlib.suppress(Unusable, sqlite3.Error, OSError):
        if (source := open_readable(path)) is not None:
            with contextlib.closing(source):
                source.backup(connection)
    return connection


def empty() -> sqlite3.Connection:
    """A new store in memory."""
    return _create(":memory:", "MEMORY")


def set_aside(path: Path) -> Path:
    """Rename a file and its logs to the first free name.corrupt-N, which is returned."""
    names = (path.with_name(f"{path.name}.corrupt-{n}") for n in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    os.replace(path, aside)
    for suffix in JOURNALS:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def identity(path: Path) -> tuple[int, int] | None:
    """Which file lies at the path, whatever its name; None if none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_corrupt(error: BaseException) -> bool:
    """Whether SQLite says that the file itself is damaged (its other errors have classes of their own)."""
    return type(error) is sqlite3.DatabaseError


_warned: set[object] = set()


def warn_once(message: str, unusable: tuple[int, int] | None = None) -> None:
    """Warn, once in a process for each message; once for each file (its `identity`) that cannot be used as a store,
    whether it is passed over or moved."""
    subject = unusable or message
    if subject not in _warned:
        _warned.add(subject)
        warnings.warn(message, StoreWarning, stacklevel=3)


def _check_header(path: Path) -> None:
    """See that SQLite may open a file and its journals.

    It takes some files of a few bytes for empty ones, and would write over them. It waits for pipes, and follows links.
    """
    cached = is_cached(path)
    try:
        with open_regular(path, cached=cached) as file:
            header = file.read(len(MAGIC))
        for suffix in JOURNALS:
            with contextlib.suppress(FileNotFoundError):
                check_regular(f"{path}{suffix}", os.lstat(f"{path}{suffix}"), cached=cached)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.EPERM):
            raise Unusable(f"no store ({error.strerror})") from error
        raise
    if header and header != MAGIC:
        raise Unusable("damaged or no store (not a database)")


def _uri(path: Path, options: str) -> str:
    return f"file:{quote(str(path.absolute()))}?{options}"


@contextlib.contextmanager
def _opening(name: str) -> Iterator[sqlite3.Connection]:
    """A connection, closed if the context raises: `Unusable` if that was for damage."""
    connection = sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=name.startswith("file:")
    )
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")
        yield connection
    except BaseException as error:
        connection.close()
        # SQLite quotes what it found in its own complaint, which may be no text.
        if isinstance(error, UnicodeDecodeError) or is_corrupt(error):
            raise Unusable(f"damaged or no store ({error})") from error
        raise


def _open(name: str) -> sqlite3.Connection | None:
    """A connection to a store; None if it has no tables yet."""
    with _opening(name) as connection:
        if has_tables(connection):
            return connection
    connection.close()
    return None


def _journal(path: Path) -> str:
    """The journal for a file there: a write-ahead log is shared memory, which machines do not share."""
    return "DELETE" if is_remote(path) else "WAL"


def _create(name: str, journal: str) -> sqlite3.Connection:
    """A connection to a store that may be written; its tables are made if there are none."""
    with _opening(name) as connection:
        _upgrade(connection)
        is_empty = not has_tables(connection)
        # Not every file system can hold a write-ahead log; the default journal serves there.
        with contextlib.suppress(sqlite3.OperationalError):
            if connection.execute(f"PRAGMA journal_mode={journal}").fetchone() == ("wal",):
                connection.execute("PRAGMA synchronous=NORMAL")  # with which other journals may be torn
        if is_empty:
            _make_tables(connection)
    return connection


def _text(content: bytes) -> str:
    return content.decode(errors="replace")  # a damaged row must fail by its checksum, not by its encoding


def has_tables(connection: sqlite3.Connection) -> bool:
    """Whether the file holds a store's tables; False if it is empty.

    They must be ours to the letter: views and triggers of a hostile file would run inside our statements.
    """
    alone = not connection.in_transaction
    if alone:  # so that another process that creates the store is seen wholly, or not at all
        connection.execute("BEGIN")
    try:
        tables = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        if alone and connection.in_transaction:
            connection.execute("ROLLBACK")
    if not tables:
        return False
    if application != APPLICATION:
        raise Unusable("another program's database")
    if version != VERSION:
        raise Unusable(f"a store of version {version}, not {VERSION}")
    if len(tables) != len(SCHEMA) or set(tables) != SCHEMA:
        raise Unusable("damaged or no store (its tables are not a store's)")
    return True


def _upgrade(connection: sqlite3.Connection) -> None:
    """Give the rows of the version before what they lack; nothing happens to any other file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMER_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # again: another process may have been first
        tables = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        if version == FORMER_VERSION and set(tables) == FORMER_SCHEMA:
            connection.create_function("checksum_of", -1, checksum, deterministic=True)
            for statement in UPGRADE:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not has_tables(connection):  # again: another process may have been first
            for statement in STATEMENTS:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION}")
            connection.execute(f"PRAGMA user_version={VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
