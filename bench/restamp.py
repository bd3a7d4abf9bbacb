"""Stamp anew what was stored under former stamps of kernels that are the same.

`STAMPS` has, for each solver, the stamp of its sources on 2026-11-27, and that of the same machine code before: of the
sources until powers, the launcher and threads changed (decision 84), which no kernel of a convolution notices
(`bench.machine_code`: 113 of 113). They were computed by `cpuconv.conv.recipe`. Rows of any other stamp were measured
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
    "pointwise": ("60bf32691b1b5cfa", "b97677ddda55aedd"),
    "direct": ("5c5216e4b3391dd7", "37fca745e439a511"),
    "amx": ("03314dd2581ad39a", "652331883e6e3f6b"),
    "first_layer": ("f90b60ca83c779aa", "a1556248ffe30a57"),
    "row_patches": ("06aa353c89769aea", "b1b1a426ac27fbd7"),
    "depthwise": ("92267487c152ed74", "01e7ce8330fb0993"),
    "depthwise_taps": ("8173fefa3f6cfffb", "35a6f905486038f2"),
    "grouped": ("30e0b9fed04af9a4", "d2c1fd9f0d567165"),
    "winograd": ("f7c09db3c0508ae7", "8967b386df0c7b3d"),
    "winograd_integer": ("c2745fb6b9467c0f", "fc1d4c68af726de8"),
    "fft": ("d194254992bae577", "9ea152a39447ae2b"),
    "folded": ("368cbaca6c22d10e", "d61425f2e3fb47d8"),
    "planar": ("fe6c191579feeb80", "1b0b2b7be3b54b0e"),
    "plane_words": ("1261bec9523a26b0", "a9dd87444dfdfeac"),
    "channels_last": ("c8254b366ec2da12", "ec19df8fdf7e3194"),
    "im2col": ("9d925e93780dd03b", "d793fd7f79d52d1a"),
    "patches": ("c24491d317b61e73", "122c44a19a407598"),
    "(all together)": ("7a275fda574611f2", "bbc8ba9e64435e8d"),
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
