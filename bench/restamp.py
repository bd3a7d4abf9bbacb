"""Stamp anew what was stored under former stamps of kernels that are the same.

`STAMPS` has, for each solver, the stamp of its sources on 2026-11-28, and that of the same machine code before: of the
sources until tiles followed sizes in more solvers, which no kernel of a convolution notices (`bench.machine_code`: 225
of 225). They were computed by `cpuconv.conv.recipe`. Rows of any other stamp were measured
with other kernels and are left as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.files import write_whole
from autotune.paths import store_path
from autotune.store import database
from autotune.store.rows import KEY, Row, from_values, to_values
from autotune.store.store import COLUMNS, INSERT
from autotune.wisdom import document
from cpuconv.conv.session import TABLES

STAMPS = {
    "pointwise": ("3fab29bb0bad792e", "3651c2f7dbca4bae"),
    "direct": ("5ad65ebd5b57d45e", "6c7dd989f3d80609"),
    "amx": ("cad0b25aef1a3e86", "da0c34a70437f7e1"),
    "first_layer": ("1a581f288eced189", "ba1f2f46e2aa2a0d"),
    "row_patches": ("db56535a0b3d324f", "7cbf6bb7f08ae050"),
    "depthwise": ("823b895fb89086c2", "98791e7d9b9e160c"),
    "depthwise_taps": ("c94d8e2301131c73", "5f01bccf70d5a43f"),
    "grouped": ("058c57307e2bc0dc", "dd81b673256d4d45"),
    "winograd": ("f596184b442e9a62", "9bf45773d4d46328"),
    "winograd_integer": ("baf91a837981674b", "4fd636cfa321cc37"),
    "fft": ("edf0604ab4417f72", "2a9bd161da6ada5a"),
    "folded": ("614837f64f107a4a", "33b3ee84426ed25e"),
    "planar": ("6ad9e4ce0efe10a8", "a5a95703689c0bf7"),
    "plane_words": ("7fcf7566a5743a79", "67a794e39323b073"),
    "channels_last": ("d021d95db72d0621", "5518893cbe630477"),
    "im2col": ("2771b63389a762c9", "2b7667aec3b5e5f2"),
    "patches": ("fd250fe81b67ece8", "44c0ff7fd902f2d3"),
    "(all together)": ("fec77879dbe58951", "17bd9e7cc909ee5f"),
}
ANEW = {old: new for new, old in STAMPS.values() if old != new}


def stamped_anew(rows: Iterable[Row]) -> list[Row]:
    """The rows under their stamps of today; of those that become one the latest."""
    latest = {}
    for row in sorted(rows, key=lambda row: row.created):
        row = row._replace(sources=ANEW.get(row.sources, row.sources))
        latest[tuple(getattr(row, name) for name in KEY)] = row
    return list(latest.values())


def restamp_store(path: Path, *, dry_run: bool) -> tuple[int, int]:
    """Rows of a store, and tunings of problems, that are stamped anew.

    Raises
    ------
    OSError, sqlite3.Error, database.Unusable
        The file is no store, or cannot be read or written.
    """
    connection = database.open_readable(path) if dry_run else database.open_writable(path)
    if connection is None:  # there is no file, or an empty one
        return 0, 0
    marks = ", ".join("?" * len(ANEW))
    with contextlib.closing(connection):
        connection.execute("BEGIN" if dry_run else "BEGIN IMMEDIATE")
        found = filter(None, map(from_values, connection.execute(f"SELECT {COLUMNS} FROM trials").fetchall()))
        rows = [row for row in found if row.sources in ANEW or row.sources in ANEW.values()]
        query = f"SELECT count(*) FROM finished WHERE sources IN ({marks})"
        (tunings,) = connection.execute(query, tuple(ANEW)).fetchone()
        if not dry_run:
            connection.execute(f"DELETE FROM trials WHERE sources IN ({marks})", tuple(ANEW))
            connection.executemany(INSERT, map(to_values, stamped_anew(rows)))
            connection.executemany(
                "UPDATE finished SET sources = ? WHERE sources = ?", [(new, old) for old, new in ANEW.items()]
            )
        connection.execute("COMMIT")
    return sum(row.sources in ANEW for row in rows), tunings


def restamp_wisdom(path: Path, *, dry_run: bool) -> tuple[int, int]:
    """The same of a file of wisdom.

    Raises
    ------
    OSError, document.WisdomError
        The file is refused, or cannot be read or written.
    """
    known = document.read(path)
    counts = sum(row.sources in ANEW for row in known), sum(each.sources in ANEW for each in known.finished)
    if any(counts) and not dry_run:
        known.rows = {problem: stamped_anew(rows) for problem, rows in known.rows.items()}
        known.finished = [replace(each, sources=ANEW.get(each.sources, each.sources)) for each in known.finished]
        write_whole({path: document.render(known)})
    return counts


def restamp(path: Path, *, dry_run: bool) -> tuple[int, int]:
    """Rows and tunings of a store or a file of wisdom that are stamped anew; raises what those two raise."""
    with path.open("rb") as file:
        is_store = file.read(len(database.MAGIC)) == database.MAGIC
    return (restamp_store if is_store else restamp_wisdom)(path, dry_run=dry_run)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser("python -m bench.restamp", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="a store or a file of wisdom (default: the user's store, and the tables that the package ships)",
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, say what would be changed")
    options = parser.parse_args(arguments)
    failed = 0
    for path in options.file or [*filter(Path.exists, [store_path()]), *sorted(TABLES.glob("*.json"))]:
        try:
            rows, tunings = restamp(path, dry_run=options.dry_run)
        except (OSError, sqlite3.Error, database.Unusable, document.WisdomError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed = 1
        else:
            would = "would be " if options.dry_run else ""
            print(f"{path}: {rows} rows and {tunings} tunings {would}stamped anew")
    return failed


if __name__ == "__main__":
    sys.exit(main())
