"""Commands `autotune export`, `import`, `merge`, `diff` and `prune`: exchange of wisdom as files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tabulate import tabulate

from autotune.cli.options import FAILED, OK, USAGE, say
from autotune.machine.device import fingerprint
from autotune.store.rows import RowLimits
from autotune.store.store import Store
from autotune.wisdom import exchange
from autotune.wisdom.document import Wisdom, render
from autotune.workload import Workload, discover
from baselib.files import write_whole

FILE = "a wisdom file, or a store"


def _export(options: argparse.Namespace) -> int:
    store = Store(options.store, read_only=True)
    here = fingerprint().key
    wanted = None if options.all else (options.device or [here])
    wisdom = exchange.from_store(store, wanted)
    missing = sorted(set(wanted or ()) - wisdom.devices.keys())
    if missing or not wisdom.devices:
        return say(f"{store.path} has no results for {', '.join(missing) or 'any device'}", FAILED)
    if options.device_table is None:
        return _put(wisdom, options.file)
    _, workload = discover(options.workload)
    folder = _tables(workload, options.device_table)
    if folder is None:
        return say("the workload ships no tables: name a folder after --device-table", USAGE)
    folder.mkdir(parents=True, exist_ok=True)
    for key in wisdom.devices:
        table = exchange.table_of(wisdom, key, RowLimits.of(workload), workload.sources_of)
        write_whole({folder / f"{key}.json": render(table)})
        say(f"{folder / key}.json: {table.count()} rows of {len(table.rows)} problems", OK)
    return OK


def _tables(workload: Workload, folder: str | Literal[True]) -> Path | None:
    return workload.tables if folder is True else Path(folder)


def _import(options: argparse.Namespace) -> int:
    wisdom = exchange.load(options.file)
    with Store(options.store, strict=True) as store:
        exchange.into_store(wisdom, store)
        _, workload = discover(options.workload)
        counts = _counts(wisdom, workload)
        if options.json:
            print(json.dumps({"store": str(store.path), **counts}, indent=2))
    trusted, seeds, stale = (counts[name] for name in ("trusted", "seeds", "stale"))
    return say(f"{trusted} rows of this device, {seeds} of others (seeds of a search), {stale} of other sources", OK)


def _counts(wisdom: Wisdom, workload: Workload) -> dict[str, int]:
    here = fingerprint().key
    current = [row for row in wisdom if row.sources in workload.sources]
    trusted = sum(row.device == here for row in current)
    return {"trusted": trusted, "seeds": len(current) - trusted, "stale": wisdom.count() - len(current)}


def _merge(options: argparse.Namespace) -> int:
    return _put(exchange.merge(map(exchange.load, options.file)), options.output)


def _diff(options: argparse.Namespace) -> int:
    first = exchange.load(options.first)
    if options.second is None:
        second = exchange.from_store(Store(options.store, read_only=True))
    else:
        second = exchange.load(options.second)
    differences = exchange.diff(first, second)
    if options.json:
        print(json.dumps([difference._asdict() for difference in differences], indent=2, ensure_ascii=False))
        return OK

    def micro(seconds: float | None) -> str:
        return "" if seconds is None else f"{seconds * 1e6:.1f}"

    table = [
        (d.device, d.problem, d.weights, d.first, micro(d.first_seconds), d.second, micro(d.second_seconds))
        for d in differences
    ]
    headers = ("device", "problem", "weights", "first", "µs", "second", "µs")
    print(tabulate(table, headers, disable_numparse=True))
    return say(f"{len(differences)} problems have different best candidates", OK)


def _prune(options: argparse.Namespace) -> int:
    _, workload = discover(options.workload)
    here = fingerprint().key
    with Store(options.store, strict=True) as store:
        dropped = {here: store.prune(here, workload.sources)}
        if options.others:
            dropped |= {key: store.prune(key, keep=False) for key in store.devices() if key != here}
        store.shrink()
        if options.json:
            print(json.dumps({"store": str(store.path), "dropped": dropped}, indent=2))
        return say(f"{sum(dropped.values())} rows deleted from {store.path}", OK)


def _put(wisdom: Wisdom, file: Path | None) -> int:
    text = render(wisdom)
    if file is None:
        print(text, end="")
    else:
        write_whole({file: text})
    return say(f"{wisdom.count()} rows of {len(wisdom.rows)} problems on {len(wisdom.devices)} devices", OK)


def add_commands(command: Callable[[str, Any, str], argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    made = command("export", _export, "export the store as a wisdom file (JSON)")
    made.add_argument("file", metavar="FILE", nargs="?", type=Path, help="output file (default: standard output)")
    made.add_argument(
        "--device", metavar="KEY", action="append", help="a device of 'autotune show' (default: this one)"
    )
    made.add_argument("--all", action="store_true", help="all devices")
    made.add_argument(
        "--device-table",
        metavar="FOLDER",
        nargs="?",
        const=True,
        help="write FOLDER/<device>.json with the rows that selection can use, as a package ships them"
        " (default: the folder that the workload ships)",
    )

    made = command("import", _import, "import a wisdom file: results of an equal device are trusted, others are seeds")
    made.add_argument("file", metavar="FILE", type=Path, help=FILE)
    made.add_argument("--json", action="store_true", help="print the imported counts as JSON")

    made = command("merge", _merge, "merge wisdom files; of equal rows the newest is kept")
    made.add_argument("file", metavar="FILE", nargs="+", type=Path, help=FILE)
    made.add_argument("--output", metavar="FILE", type=Path, help="output file (default: standard output)")

    made = command("diff", _diff, "list the problems whose best candidates differ")
    made.add_argument("first", metavar="FIRST", type=Path, help=FILE)
    made.add_argument("second", metavar="SECOND", nargs="?", type=Path, help=f"{FILE} (default: the store)")
    made.add_argument("--json", action="store_true", help="print as JSON")

    made = command(
        "prune",
        _prune,
        "delete rows that selection on this device no longer uses: rows of older sources that were measured again",
    )
    made.add_argument(
        "--others", action="store_true", help="also delete the rows of other devices, which serve as seeds"
    )
    made.add_argument("--json", action="store_true", help="print the deleted counts as JSON")
