"""Tune, compare and store the tables of this device: `python -m bench.tables --help`."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Sequence

from rich.console import Console

from autotune.tuning.effort import EFFORTS
from baselib.files import write_whole
from bench import compare, options, shapes, tables
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
        write_whole(tables.pages(tables.kept()) if args.render else tables.files(_make(args, console)))
    except (KeyboardInterrupt, tables.Incomplete) as why:
        console.print(f"Nothing is written: {why or 'interrupted'}.")
        return options.INTERRUPTED if getattr(why, "interrupted", True) else 1
    print(tables.short(tables.kept()))
    if low := tables.unexplained(tables.kept()):
        console.print(f"{tables.PAGE} has no note on: {', '.join(low)}.")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("tables", __doc__, *compare.MEASURING)
    p.add_argument("--threads", type=options.counts, default=(1, 2), help="a table for each count (1,2)")
    p.add_argument("--nchw", action="store_true", help="also tables with NCHW in and out")
    p.add_argument("--types", type=_types, default=(), help="also tables in other types, such as bf16,int8")
    p.add_argument("--batch", type=options.counts, default=(), help="also tables with these batch sizes, such as 8")
    compare.add_measuring(p)
    p.set_defaults(runs=3)
    p.add_argument("--effort", choices=EFFORTS, default="normal", help="effort of the warmup (normal)")
    p.add_argument("--no-warmup", action="store_true", help="use the results in the store")
    p.add_argument("--render", action="store_true", help="skip measurements: render the pages from the stored tables")
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


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: write nothing, leave no process
    sys.exit(main())
