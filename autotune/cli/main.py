"""Command line of autotune."""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.cli import warmup as cli_warmup
from autotune.cli import wisdom as cli_wisdom
from autotune.cli.options import EPILOG, FAILED, INTERRUPTED, OK, USAGE, add_problem_options, load, printed, say
from autotune.cli.parsing import Parser, add_version
from autotune.cli.wide import WIDE, add_wide, on_screen
from autotune.machine.device import fingerprint
from autotune.report import tables as report
from autotune.report.doctor import as_lines, examine, figure_text
from autotune.report.explain import explain_stored
from autotune.report.table_rows import Section, best_lines
from autotune.store.store import Store, Use
from autotune.tuning.effort import EFFORTS
from autotune.tuning.worker import WorkerError
from autotune.wisdom.document import WisdomError
from autotune.workload import SourceError, discover
from baselib.files import write_whole
from baselib.screen import Column, Table, as_text, pairs_text, terminal_width
from baselib.signals import interrupts_arrive
from baselib.text import count_of, joined

ALL = "all"
_SHOWN = (  # columns of `show`: title, rank, and min. width of those that may be shortened
    ("device", 0, None), ("CPU", 1, 12), ("ISA", 2, None), ("cores", 5, None), ("problems", 0, None),
    ("provisional", 6, None), ("timed", 3, None), ("rejected", 4, None),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    options = _parser().parse_args(arguments)
    if options.command is cli_warmup.run and not (options.source or options.missed):
        raise SystemExit(say("warmup needs a SOURCE, or --missed; see 'autotune warmup --help'", USAGE))
    try:
        with interrupts_arrive():
            return printed(lambda: options.command(options))
    except SourceError as error:
        return say(str(error), USAGE)
    except (WorkerError, WisdomError, sqlite3.Error, OSError) as error:
        return say(str(error), FAILED)
    except KeyboardInterrupt:
        return say("interrupted", INTERRUPTED)


def _table(options: argparse.Namespace) -> int:
    _, workload = discover(options.workload)
    store = Store(options.store, read_only=True)
    wanted = fingerprint().key if options.device is None else options.device
    sections = []
    for key, fields in store.devices().items():
        if wanted == ALL or key.startswith(wanted):
            lines = best_lines(store, key, workload, store.problems(key))
            sections.append(Section(fields, [line for line in lines if line.row is not None]))
    sections = [section for section in sections if section.lines]
    if not sections:
        which = "this device" if options.device is None else f"a device {wanted!r}"
        return say(f"{store.path} has no results for {which}; see 'autotune warmup --help'", FAILED)
    width = terminal_width()
    if options.format is None and options.output is None and width is not None:
        print(report.shown(sections, None if options.wide else width), end="")
        return OK
    text = report.render(sections, options.format or report.FORMATS[0])
    if options.output is None:
        print(text, end="")
    else:
        write_whole({options.output: text})
    return OK


def _show(options: argparse.Namespace) -> int:
    store = Store(options.store, read_only=True)
    devices = store.devices()
    content: dict[str, Any] = {
        "store": str(store.path),
        "bytes": store.path.stat().st_size if store.path.exists() else 0,
        "health": store.health(),
        "this_device": fingerprint().key,
        "devices": list(devices.values()),
    }
    if options.json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return OK
    print(f"{content['store']}: {content['bytes'] / 1024:.0f} KiB, {content['health']}\n")
    table = [
        (
            key + (" (this)" if key == content["this_device"] else ""),
            *(str(fields[name]) for name in ("model", "isa", "cores", "finished", "provisional", "timed", "rejected")),
        )
        for key, fields in devices.items()
    ]
    columns = [Column(title, rank=rank, least=least) for title, rank, least in _SHOWN]
    print(as_text(iter([Table(columns, table)]), None if options.wide else terminal_width(), WIDE))
    return OK


def _explain(options: argparse.Namespace) -> int:
    _, workload = discover(options.workload)
    device = fingerprint().key
    store = Store(options.store, read_only=True)
    uses = [use for use in store.problems(device) if options.problem in (use.label, use.problem)]
    if not uses:
        uses = [Use.of(problem) for problem in load(workload, [options.problem], options)]
    effort = list(EFFORTS)[-1]
    explanations = {
        name: explain_stored(store, device, workload, use.problem, use.flops, use.threads, effort)
        for name, use in {(use.label, use.problem): use for use in uses}.items()
    }
    if options.json:
        reports = [{"label": label, **explanation.to_dict()} for (label, _), explanation in explanations.items()]
        print(json.dumps(reports, indent=2, ensure_ascii=False))
    else:
        told = (
            f"{joined(label, workload.summary(key))}\n{on_screen(each, options)}"
            for (label, key), each in explanations.items()
        )
        print("\n\n".join(told))
    return OK


def _doctor(options: argparse.Namespace) -> int:
    try:
        workload = discover(options.workload)[1]
    except SourceError as error:
        say(str(error), OK)
        workload = None

    def listener(threads: int, name: str, value: float) -> None:
        say(f"{count_of(threads, 'thread')}: {': '.join(figure_text(name, value))}", OK)

    findings = examine(workload, Store(options.store, read_only=True), listener if options.measure else None)
    if options.json:
        print(json.dumps(findings, indent=2, ensure_ascii=False, default=str))
    else:
        print(pairs_text(as_lines(findings, fingerprint(), verbose=options.verbose), terminal_width()))
    return OK if findings["healthy"] else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="autotune",
        description="Find the fastest algorithm of each problem on this machine, and store it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=help, description=help, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        made.set_defaults(command=run)
        made.add_argument("--store", metavar="PATH", type=Path, help="store file (default: in the cache folder)")
        made.add_argument("--workload", metavar="MODULE:ATTR", help="the workload to tune (default: the installed one)")
        return made

    made = command(
        "warmup", cli_warmup.run, "time the candidates of every problem in the sources and store the fastest"
    )
    cli_warmup.add_options(made)

    made = command("table", _table, "print the best candidate of every problem of every network, with totals")
    made.add_argument("--device", metavar="KEY", help=f"one of 'autotune show', or {ALL} (default: this one)")
    made.add_argument(
        "--format", choices=report.FORMATS,
        help=f"default: on a terminal columns that fit its width, else {report.FORMATS[0]}",
    )  # fmt: skip
    add_wide(made)
    made.add_argument("--output", metavar="FILE", type=Path, help="write to a file, atomically")

    made = command("show", _show, "show the content of the store")
    made.add_argument("--json", action="store_true", help="print as JSON")
    add_wide(made)

    made = command("explain", _explain, "list every candidate of a problem: its time, or why it was left out")
    made.add_argument("problem", metavar="PROBLEM", help="a label or key from the table, or a source of problems")
    add_problem_options(made)
    made.add_argument("--json", action="store_true", help="print as JSON")
    add_wide(made)

    made = command("doctor", _doctor, "show the properties of this machine and the state of the store")
    made.add_argument(
        "--measure", action="store_true", help="measure the roofs, which takes a second or two, and store them"
    )
    made.add_argument(
        "--verbose", action="store_true", help="show all details: sources, peaks of each instruction type, versions"
    )
    made.add_argument("--json", action="store_true", help="print as JSON")

    cli_wisdom.add_commands(command)
    return parser
