"""The tables of a store's SQLite file: those of today, and what makes them of the version before."""

from __future__ import annotations

VERSION = 3  # the file's user_version; raise it with every change of a table

_TABLES = {
    "trials": """CREATE TABLE trials (
    device TEXT, problem TEXT, candidate TEXT, sources TEXT, state TEXT, reason TEXT,
    median REAL, spread REAL, count INTEGER, score REAL, error REAL, error_limit REAL,
    workspace INTEGER, accuracy TEXT, bound REAL, estimate REAL, created REAL, weights TEXT, threads_fraction REAL,
    checksum INTEGER, PRIMARY KEY (device, problem, weights, candidate, sources)) WITHOUT ROWID""",
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
_CLAIMS = """CREATE TABLE claims (
    device TEXT, problem TEXT, regime TEXT, owner TEXT, place TEXT, pid INTEGER, started TEXT, renewed REAL,
    PRIMARY KEY (device, problem, regime)) WITHOUT ROWID"""


def _schema(tables: dict[str, str]) -> frozenset[tuple[str, str, str]]:
    return frozenset(("table", name, statement) for name, statement in tables.items())


STATEMENTS = tuple(_TABLES.values())
SCHEMA = _schema(_TABLES)
"""What sqlite_master holds of a store."""

FORMER_VERSION = 2
FORMER = {name: text.replace("weights", "regime") for name, text in _TABLES.items()} | {"claims": _CLAIMS}
FORMER_SCHEMA = _schema(FORMER)
UPGRADE = (
    "ALTER TABLE trials RENAME COLUMN regime TO weights",
    "ALTER TABLE finished RENAME COLUMN regime TO weights",
    "DROP TABLE claims",
)
