"""The store's SQLite file: opening, setting aside unusable files, fallback to memory where writing fails.

The first writer upgrades a store of the previous version. If a file is damaged, another program's, or a store of any
other version, a writer renames it to name.corrupt-N and begins a new store; a reader skips it. Each case warns once.
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

from autotune.store.mounts import is_remote
from autotune.store.rows import checksum
from autotune.store.schema import FORMER_SCHEMA, FORMER_VERSION, SCHEMA, STATEMENTS, UPGRADE, VERSION
from baselib.files import check_regular, open_regular
from baselib.paths import is_cached

APPLICATION = 0x43505543  # "CPUC", SQLite's application ID in the file header
MAGIC = b"SQLite format 3\0"
JOURNALS = ("-wal", "-shm", "-journal")  # suffixes of the files next to the store's
BUSY_SECONDS = 30.0
ATTEMPTS = 3


class StoreWarning(UserWarning):
    """The store on disk could not be used as it is; the message says what was done."""


class Unusable(Exception):
    """A file is not a store of this version; the message gives the reason."""


def open_writable(path: Path) -> sqlite3.Connection:
    """Open or create the file; a file that is not a store of this version is set aside first.

    Raises
    ------
    sqlite3.Error, OSError
        The file cannot be opened or created.
    """
    for _ in range(ATTEMPTS):
        seen = identity(path)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # folders writable by others are not trusted
            _check_header(path)
            return _create(str(path), _journal(path))
        except Unusable as error:
            # Another process may have replaced the file in the meantime: then try again.
            if seen == identity(path):
                aside = set_aside(path)
                warn_once(f"{path} is {error}; moved to {aside.name}, a new store is created", seen)
    raise OSError("its file keeps changing")


def open_readable(path: Path) -> sqlite3.Connection | None:
    """Open the file read-only, without creating or moving it; return None if it is missing or empty.

    Raises
    ------
    Unusable, sqlite3.Error
        The file is not a store of this version, or cannot be read.
    """
    if not os.path.lexists(path):  # also if a parent folder is not accessible
        return None
    _check_header(path)
    try:
        return _open(_uri(path, "mode=ro"))
    except sqlite3.OperationalError:
        # The write-ahead log of a read-only folder cannot be opened: read the main file alone.
        return _open(_uri(path, "immutable=1"))


def recover(path: Path, error: sqlite3.DatabaseError) -> sqlite3.Connection:
    """Return a new connection after an error in use, if the file is damaged; else raise the error.

    Raises
    ------
    sqlite3.Error, OSError
        The original error, if the file is not damaged; or a new file cannot be created.
    """
    if not is_corrupt(error):
        raise error
    seen = identity(path)
    aside = set_aside(path)
    warn_once(f"{path} is damaged ({error}); moved to {aside.name}, a new store is created", seen)
    return open_writable(path)


def in_memory(path: Path, why: str) -> sqlite3.Connection:
    """Return a store in memory, with the file's content as far as it is readable; warns once."""
    warn_once(f"{path} cannot be written ({why}); results are stored in memory only")
    connection = empty()
    with contextlib.suppress(Unusable, sqlite3.Error, OSError):
        if (source := open_readable(path)) is not None:
            with contextlib.closing(source):
                source.backup(connection)
    return connection


def empty() -> sqlite3.Connection:
    """Return a new store in memory."""
    return _create(":memory:", "MEMORY")


def set_aside(path: Path) -> Path:
    """Rename a file and its logs to the first free name.corrupt-N; return the new path."""
    names = (path.with_name(f"{path.name}.corrupt-{n}") for n in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    os.replace(path, aside)
    for suffix in JOURNALS:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file at the path; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_corrupt(error: BaseException) -> bool:
    """Whether an error means that the file itself is damaged (SQLite's other errors have subclasses)."""
    return type(error) is sqlite3.DatabaseError


_warned: set[object] = set()


def warn_once(message: str, unusable: tuple[int, int] | None = None) -> None:
    """Warn once per process and message; for an unusable file (its `identity`) once, whether it is skipped or
    moved."""
    subject = unusable or message
    if subject not in _warned:
        _warned.add(subject)
        warnings.warn(message, StoreWarning, stacklevel=3)


def _check_header(path: Path) -> None:
    """Check that SQLite may open a file and its journals.

    SQLite takes some files of a few bytes for empty ones, and would overwrite them. It blocks on pipes, and follows
    links.
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
    """Open a connection for the context; close it if the context raises, and raise `Unusable` for a damaged file."""
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
        # SQLite quotes the file's content in its message, which may not be valid text.
        if isinstance(error, UnicodeDecodeError) or is_corrupt(error):
            raise Unusable(f"damaged or no store ({error})") from error
        raise


def _open(name: str) -> sqlite3.Connection | None:
    """Return a connection to a store; None if it has no tables yet."""
    with _opening(name) as connection:
        if has_tables(connection):
            return connection
    connection.close()
    return None


def _journal(path: Path) -> str:
    """Return the journal mode for a file: a write-ahead log needs shared memory, which machines do not share."""
    return "DELETE" if is_remote(path) else "WAL"


def _create(name: str, journal: str) -> sqlite3.Connection:
    """Return a writable connection to a store; create its tables if there are none."""
    with _opening(name) as connection:
        _upgrade(connection)
        is_empty = not has_tables(connection)
        # Not every file system supports a write-ahead log; there, the default journal is used.
        with contextlib.suppress(sqlite3.OperationalError):
            if connection.execute(f"PRAGMA journal_mode={journal}").fetchone() == ("wal",):
                connection.execute("PRAGMA synchronous=NORMAL")  # not safe with other journals
        if is_empty:
            _make_tables(connection)
    return connection


def _text(content: bytes) -> str:
    return content.decode(errors="replace")  # a damaged row fails its checksum, not the decoding


def has_tables(connection: sqlite3.Connection) -> bool:
    """Whether the file contains a store's tables; False if it is empty.

    Their definitions must match exactly: views and triggers of a hostile file would run inside our statements.
    """
    alone = not connection.in_transaction
    if alone:  # to see another process's creation of the store completely or not at all
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
    """Upgrade a store of the previous version by adding the missing fields; leave other files unchanged."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMER_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # again, as another process may have upgraded
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
        if not has_tables(connection):  # again, as another process may have created them
            for statement in STATEMENTS:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION}")
            connection.execute(f"PRAGMA user_version={VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
