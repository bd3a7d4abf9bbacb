"""The tables of a store's SQLite file, and how those of an older version become those of today."""

from __future__ import annotations

from autotune.store.rows import WARM, Row

_FINISHED = """CREATE TABLE finished (
    device TEXT, problem TEXT, regime TEXT, effort TEXT, sources TEXT, threads INTEGER, created REAL,
    PRIMARY KEY (device, problem, regime, effort)) WITHOUT ROWID"""
_TRIALS = """CREATE TABLE trials (
    device TEXT, problem TEXT, candidate TEXT, sources TEXT, state TEXT, reason TEXT,
    median REAL, spread REAL, count INTEGER, score REAL, error REAL, error_limit REAL,
    workspace INTEGER, accuracy TEXT, bound REAL, estimate REAL, created REAL, regime TEXT, threads_fraction REAL,
    checksum INTEGER, PRIMARY KEY (device, problem, regime, candidate, sources)) WITHOUT ROWID"""
_CLAIMS = """CREATE TABLE claims (
    device TEXT, problem TEXT, regime TEXT, owner TEXT, place TEXT, pid INTEGER, started TEXT, renewed REAL,
    PRIMARY KEY (device, problem, regime)) WITHOUT ROWID"""
_MISSED = """CREATE TABLE missed (
    device TEXT, problem TEXT, count INTEGER, seen REAL, PRIMARY KEY (device, problem)) WITHOUT ROWID"""

_OLD = ", ".join(Row._fields[:17])  # the columns that version 1 had

# Each entry takes the schema one version up; the number applied is the file's user_version.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE trials (
            device TEXT, problem TEXT, candidate TEXT, sources TEXT, state TEXT, reason TEXT,
            median REAL, spread REAL, count INTEGER, score REAL, error REAL, error_limit REAL,
            workspace INTEGER, accuracy TEXT, bound REAL, estimate REAL, created REAL,
            PRIMARY KEY (device, problem, candidate)) WITHOUT ROWID""",
        """CREATE TABLE finished (
            device TEXT, problem TEXT, effort TEXT, sources TEXT, threads INTEGER, created REAL,
            PRIMARY KEY (device, problem, effort)) WITHOUT ROWID""",
        """CREATE TABLE uses (
            network TEXT, threads INTEGER, layouts TEXT, label TEXT, problem TEXT, count INTEGER, flops REAL,
            position INTEGER, PRIMARY KEY (network, threads, layouts, label, problem)) WITHOUT ROWID""",
        "CREATE TABLE devices (device TEXT PRIMARY KEY, fields TEXT, roofs TEXT) WITHOUT ROWID",
    ),
    (
        "ALTER TABLE trials RENAME TO old_trials",
        "ALTER TABLE finished RENAME TO old_finished",
        _TRIALS,
        _FINISHED,
        f"""INSERT INTO trials SELECT {_OLD}, '{WARM}', NULL, checksum({_OLD}, '{WARM}', NULL) FROM old_trials""",
        f"""INSERT INTO finished
            SELECT device, problem, '{WARM}', effort, sources, threads, created FROM old_finished""",
        "DROP TABLE old_trials",
        "DROP TABLE old_finished",
        _CLAIMS,
        _MISSED,
    ),
)
VERSION = len(MIGRATIONS)


def _tables(statements: tuple[str, ...]) -> dict[str, str]:
    creating = "CREATE TABLE "
    return {text[len(creating) :].split()[0]: text for text in statements if text.startswith(creating)}


def _schemas() -> tuple[frozenset[tuple[str, str, str]], ...]:
    """What sqlite_master holds after each version, from the empty file on."""
    tables: dict[str, str] = {}
    schemas = [tables]
    for statements in MIGRATIONS:
        tables = {**tables, **_tables(statements)}
        schemas.append(tables)
    return tuple(frozenset(("table", name, text) for name, text in tables.items()) for tables in schemas)


SCHEMA = _schemas()
