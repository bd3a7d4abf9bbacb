"""Tune, compare and store the tables of this device: `python -m bench.tables --help`."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from autotune.files import write_whole
from autotune.tuning.effort import EFFORTS
from bench import compare, shapes, tables
from bench.settings import PLAIN, Settings
from cpuconv.problem.types import Types


def main(argv: Sequence[str] | None = None) -> int:
    """Make every table, then write all files together.

    Returns
    -------
    int
        0 when done, 1 if a table is incomplete, 130 when interrupted; in the last two cases nothing is written.
    """
    args = parser().parse_args(argv)
    console = Console(stderr=True, highlight=False)
    try:
        if args.render:
            write_whole(tables.pages(tables.kept(args.folder), args.page, args.overview, args.families))
        else:
            write_whole(tables.files(_make(args, console), args.folder, args.page, args.overview, args.families))
    except (KeyboardInterrupt, tables.Incomplete) as why:
        console.print(f"Nothing is written: {why or 'interrupted'}.")
        return compare.INTERRUPTED if getattr(why, "interrupted", True) else 1
    print(tables.short(tables.kept(args.folder)))
    if low := tables.unexplained(tables.kept(args.folder), args.page.read_text(encoding="utf-8")):
        console.print(f"{args.page} has no note on: {', '.join(low)}.")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.tables", description=__doc__)
    p.add_argument("--threads", type=_numbers, default=(1, 2), help="a table for each count (1,2)")
    p.add_argument("--nchw", action="store_true", help="also tables with NCHW in and out")
    p.add_argument("--types", type=_types, default=(), help="also tables in other types, such as bf16,int8")
    p.add_argument("--batch", type=_numbers, default=(), help="also tables with these batch sizes, such as 8")
    compare.add_measuring(p)
    p.set_defaults(runs=3)
    p.add_argument("--effort", choices=EFFORTS, default="normal", help="effort of the warmup (normal)")
    p.add_argument("--no-warmup", action="store_true", help="use the results in the store")
    p.add_argument("--render", action="store_true", help="skip measurements: render the pages from the stored tables")
    p.add_argument("--folder", type=Path, default=tables.FOLDER, help="folder of the tables (%(default)s)")
    p.add_argument("--page", type=Path, default=tables.PAGE, help="page of families and lines (%(default)s)")
    p.add_argument("--overview", type=Path, default=tables.OVERVIEW, help="page with a row per table (%(default)s)")
    p.add_argument("--families", type=Path, default=tables.FAMILIES, help="page of one device's families (%(default)s)")
    return p


def wanted(args: argparse.Namespace) -> list[Settings]:
    """Return the settings of the selected tables, ordered by threads."""
    variants = [{}, *([{"layouts": (PLAIN,)}] if args.nchw else []), *({"batch": batch} for batch in args.batch)]
    base = compare.settings(args)
    found = []
    for threads in args.threads:
        asked = dataclasses.replace(base, threads=threads)
        found += [dataclasses.replace(asked, **more) for more in variants]
        found += [compare.in_types(asked, types) for types in args.types]
    return found


def _make(args: argparse.Namespace, console: Console) -> list[tuple[tables.Data, str]]:
    made = []
    asked = wanted(args)
    for number, each in enumerate(asked, 1):
        console.print(f"Table {number} of {len(asked)}: {each.title}")
        lines = shapes.load(args.shapes, batch=each.batch, types=each.types)
        if not args.no_warmup:
            tables.warm(lines, each, args.effort)
        made.append(tables.measured(lines, each, console))
    return made


def _types(text: str) -> tuple[Types, ...]:
    return tuple(compare.types(part) for part in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(compare.positive(part) for part in text.split(","))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: write nothing, leave no process
    sys.exit(main())
