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
    "pointwise": ("7307ea5efc18fa27", "3fab29bb0bad792e"),
    "direct": ("423b34e6ea707ad0", "5ad65ebd5b57d45e"),
    "amx": ("b7a5a9126ea09757", "cad0b25aef1a3e86"),
    "first_layer": ("f27bf18316d37331", "1a581f288eced189"),
    "row_patches": ("d908c63b5471dccf", "db56535a0b3d324f"),
    "depthwise": ("39482df7448beba3", "823b895fb89086c2"),
    "depthwise_taps": ("3f06014a8f96b3c6", "c94d8e2301131c73"),
    "grouped": ("4c1756bb18f4a4aa", "058c57307e2bc0dc"),
    "winograd": ("d7bacb7a2e2774fe", "f596184b442e9a62"),
    "winograd_integer": ("920d73dadc101f5b", "baf91a837981674b"),
    "fft": ("875f1d7e177c1687", "edf0604ab4417f72"),
    "folded": ("f38b1bddc5af81d5", "614837f64f107a4a"),
    "planar": ("2753397cf8fa7d1b", "6ad9e4ce0efe10a8"),
    "plane_words": ("a9d680310b2e6503", "7fcf7566a5743a79"),
    "channels_last": ("669c0718f9b61f68", "d021d95db72d0621"),
    "im2col": ("78165473f00e3a34", "2771b63389a762c9"),
    "patches": ("0859f58cb1b70782", "fd250fe81b67ece8"),
    "(all together)": ("7c873db92c4bff2f", "fec77879dbe58951"),
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
