"""Tables of a store's SQLite file: the current schema, and the upgrade from the previous version."""

from __future__ import annotations

from autotune.store.rows import Row

VERSION = 4  # the file's user_version; increase it with every change of a table

_TABLES = {
    "trials": """CREATE TABLE trials (
    device TEXT, problem TEXT, candidate TEXT, sources TEXT, state TEXT, reason TEXT,
    median REAL, spread REAL, count INTEGER, score REAL, error REAL, error_limit REAL,
    workspace INTEGER, accuracy TEXT, bound REAL, estimate REAL, created REAL, weights TEXT, threads_fraction REAL,
    kernels TEXT, checksum INTEGER, PRIMARY KEY (device, problem, weights, candidate, sources)) WITHOUT ROWID""",
    "finished": """CREATE TABLE finished (
    device TEXT, problem TEXT, weights TEXT, effort TEXT, sources TEXT, threads INTEGER, created REAL,
    PRIMARY KEY (device, problem, weights, effort)) WITHOUT ROWID""",
    "uses": """CREATE TABLE uses (
            network TEXT, threads INTEGER, layouts TEXT, label TEXT, problem TEXT, count INTEGER, flops REAL,
            position INTEGER, PRIMARY KEY (network, threads, layouts, label, problem)) WITHOUT ROWID""",
    "devices": "CREATE TABLE devices (device TEXT PRIMARY KEY, fields TEXT, roofs TEXT) WITHOUT ROWID",
    "missed": """CREATE TABLE missed (
    device TEXT, problem TEXT, count INTEGER, seen REAL, PRIMARY KEY (device, problem)) WITHOUT ROWID""",
}


def _schema(tables: dict[str, str]) -> frozenset[tuple[str, str, str]]:
    return frozenset(("table", name, statement) for name, statement in tables.items())


STATEMENTS = tuple(_TABLES.values())
SCHEMA = _schema(_TABLES)
"""Content of sqlite_master in a store."""

FORMER_VERSION = 3
FORMER = {name: text.replace("\n    kernels TEXT, checksum", "\n    checksum") for name, text in _TABLES.items()}
FORMER_SCHEMA = _schema(FORMER)
_FORMER_FIELDS = ", ".join(name for name in Row._fields if name != "kernels")
UPGRADE = (
    "ALTER TABLE trials RENAME TO former",
    _TABLES["trials"],
    f"""INSERT INTO trials SELECT {_FORMER_FIELDS}, '', checksum_of({_FORMER_FIELDS}, '') FROM former
        WHERE checksum = checksum_of({_FORMER_FIELDS})""",
    "DROP TABLE former",
)
"""Statements of the upgrade; `checksum_of` in them is `rows.checksum`."""
