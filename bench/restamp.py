"""Stamp anew what was stored under former stamps of kernels that are the same.

`STAMPS` has, for each solver, the stamp of its sources today, then those of the same machine code before: of the
sources until idle threads slept without a time limit, which no kernel notices; of the modules in rooms (machine code of
commit d2ebd0d, compared tile by tile); and, as stamps were hashes of text, of the text in that commit, in 15f3c01, and
in da117ea to 77b46b1, which differ in docstrings alone. They were computed once by the algorithm of their time
(`stamp.py` in those commits). Rows of any other stamp were measured with other kernels and are left as they are.
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
    "depthwise": ("08116d1dcfcf982b", "717adb2c42e69233", "bb39d7e46d2c05a3", "78793a5136c0586e", "4c3634d09c5fa871"),
    "direct": ("6be4e9b871b19f90", "1f4297f59533a0da", "62ef7d9cddb07f65", "c55a3ea444d4f9ac", "a3908f6bbdd29698"),
    "fft": ("2a0474f5b3e0b22d", "e3654eff7fe86fa8", "75f7075bb2028317", "69f113f60e988fff", "2fe2834be7fafe77"),
    "first_layer": ("57a275259e97f689", "5a41af7db374575b", "b3cd766a5b0c0784", "6eca44708081a037", "bc11655e67b13657"),
    "grouped": ("fbc971cd755f326e", "17c9c23b906bd040", "827bde0f4d9d168d", "3a33ccc48a027b71", "9cad90905631b7db"),
    "im2col": ("38164a7e2cce996f", "f3bed9998eb2ee93", "4be1d7b0e3dcc269", "10c25ba61893b0cf", "d9491ce35dc256a5"),
    "planar": ("798beedb2bcf8257", "3dea4d925d2f7f98", "ecb6752b658016cc", "d29ac69bf995ee26", "b10c66a80b71d4f2"),
    "pointwise": ("d9928313132a15a3", "9a76d7aabbd644c1", "8e3a35904f6b147a", "505afe828a370112", "4364ec664d6cff63"),
    "winograd": ("9fc4efcabd7ab90d", "fcde09fccaf63173", "3c1e5f218e331f4d", "c6457cb62cf65f42", "3a76a1daf1d79c92"),
    "(all together)": (
        "60cd949a0e3cd30c",
        "0db4e8cfe496be87",
        "8d0ef374637e1857",
        "0e1e703495ca0ce3",
        "aa334f2998fd13e3",
    ),
}
ANEW = {old: new for new, *hashes in STAMPS.values() for old in hashes}


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
