"""The command line: warmup, table, show, explain, doctor."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from autotune import report
from autotune.device import allowed_cores, fingerprint
from autotune.display import display
from autotune.doctor import as_lines, examine
from autotune.measure import EFFORTS
from autotune.store import Row, Store, Use
from autotune.warmup import Outcome, warmup
from autotune.worker import WorkerError
from autotune.workload import Problem, SourceError, Workload, discover

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130

EPILOG = f"""exit codes:
  {OK:3}  done
  {FAILED:3}  failed: nothing to tune or to show, a problem that no candidate solves, or a store or workload in trouble
  {USAGE:3}  wrong usage, or a source that cannot be read
  {INTERRUPTED:3}  interrupted; what was found is kept, and the same command goes on from there
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except SourceError as error:
        return _say(str(error), USAGE)
    except (WorkerError, sqlite3.Error, OSError) as error:
        return _say(str(error), FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)


def _warmup(options: argparse.Namespace) -> int:
    spec, workload = discover(options.workload)
    problems = _load(workload, options.source, options)
    if not problems:
        return _say("the sources hold no problem to tune", FAILED)
    store, outcome, begun = Store(options.store), Outcome(), time.monotonic()
    try:
        with display() as listener:
            warmup(
                workload,
                problems,
                store,
                options.effort,
                options.budget,
                listener,
                spec=spec,
                threads=options.threads,
                layouts=_layouts_text(options),
                outcome=outcome,
            )
    except KeyboardInterrupt:
        done = len(outcome.tuned) + len(outcome.resumed)
        return _say(f"interrupted: {done} tuned, {len(outcome.left)} left; the same command goes on", INTERRUPTED)
    return _tell_outcome(workload, problems, store, outcome, time.monotonic() - begun, options)


def _tell_outcome(
    workload: Workload,
    problems: Sequence[Problem],
    store: Store,
    outcome: Outcome,
    seconds: float,
    options: argparse.Namespace,
) -> int:
    layouts = _layouts_text(options)
    uses = [Use(p.network, options.threads, layouts, p.label, p.key, p.count, p.flops) for p in problems]
    lines = report.best_lines(store, fingerprint().key, workload.sources, uses)
    if options.json:
        content = {
            "device": fingerprint().to_dict(),
            "store": str(store.path),
            "seconds": seconds,
            "tuned": list(outcome.tuned),
            "resumed": outcome.resumed,
            "failed": outcome.failed,
            "left": outcome.left,
            "problems": [line.record() for line in lines],
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(report.render(lines, "plain"), end="")
    counts = f"{len(outcome.tuned)} tuned in {seconds:.1f} s, {len(outcome.resumed)} tuned before"
    if outcome.left:
        counts += f", {len(outcome.left)} left for want of time"
    if outcome.failed:
        counts += f", {len(outcome.failed)} that no candidate solves (see 'autotune explain')"
    _say(counts, OK)
    return FAILED if outcome.failed or not (outcome.tuned or outcome.resumed) else OK


def _table(options: argparse.Namespace) -> int:
    _, workload = discover(options.workload)
    device = fingerprint()
    store = Store(options.store, read_only=True)
    lines = report.best_lines(store, device.key, workload.sources, store.problems(device.key))
    lines = [line for line in lines if line.row is not None]
    if not lines:
        return _say(f"{store.path} holds nothing for this device; see 'autotune warmup --help'", FAILED)
    text = report.render(lines, options.format, device=device.to_dict())
    if options.output is None:
        print(text, end="")
    else:
        _write(options.output, text)
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
            *(fields[name] for name in ("model", "isa", "cores", "finished", "timed", "rejected")),
        )
        for key, fields in devices.items()
    ]
    print(tabulate(table, ("device", "CPU", "ISA", "cores", "problems", "timed", "rejected"), disable_numparse=True))
    return OK


def _explain(options: argparse.Namespace) -> int:
    _, workload = discover(options.workload)
    device = fingerprint().key
    store = Store(options.store, read_only=True)
    known = [use for use in store.problems(device) if options.problem in (use.label, use.problem)]
    found = [(use.problem, use.label, use.flops) for use in known]
    found = found or [(p.key, p.label, p.flops) for p in _load(workload, [options.problem], options)]
    reports = []
    for key, label, flops in dict.fromkeys(found):
        rows = [row for row in store.rows(device, key) if row.sources == workload.sources]
        candidates, rejected = workload.candidates(key, list(EFFORTS)[-1])
        named = {row.candidate for row in rows}
        untimed = [other for other in (*candidates, *rejected) if other.name not in named]
        if options.json:
            reports.append({"label": label, "problem": key, "candidates": _explained(rows, untimed, flops)})
        else:
            print(f"{label}  {key}\n\n{report.render_candidates(rows, untimed, flops, 'plain')}\n")
    if options.json:
        print(json.dumps(reports, indent=2, ensure_ascii=False))
    return OK


def _explained(rows: Sequence[Row], untimed: Sequence[Any], flops: float) -> list[dict[str, Any]]:
    timed = [row._asdict() | {"gflops": flops / row.median * 1e-9 if row.state == "ok" else None} for row in rows]
    others = [{"state": "untimed", "candidate": vars(other)["name"], **vars(other)} for other in untimed]
    # JSON has no NaN: what is unknown is null.
    return [{key: None if value != value else value for key, value in each.items()} for each in (*timed, *others)]


def _doctor(options: argparse.Namespace) -> int:
    try:
        workload = discover(options.workload)[1]
    except SourceError as error:
        _say(str(error), OK)
        workload = None
    findings = examine(workload, Store(options.store, read_only=True))
    if options.json:
        print(json.dumps(findings, indent=2, ensure_ascii=False, default=str))
    else:
        print(tabulate(as_lines(findings, fingerprint()), tablefmt="plain", disable_numparse=True))
    return OK if findings["healthy"] else FAILED


def _load(workload: Workload, sources: Sequence[str], options: argparse.Namespace) -> list[Problem]:
    loaded = (workload.load(source, layouts=options.layouts, threads=options.threads) for source in sources)
    return [problem for problems in loaded for problem in problems]


def _layouts_text(options: argparse.Namespace) -> str:
    return ",".join(options.layouts)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _say(message: str, code: int) -> int:
    print(f"autotune: {message}", file=sys.stderr)
    return code


def _layouts(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, 2) or not all(parts):
        raise argparse.ArgumentTypeError(f"must be 'IN,OUT' such as NCHW,NCHW, or auto, not {text!r}")
    return parts[0], parts[-1]


def _positive(kind: type[int] | type[float]) -> Any:
    def convert(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive, not {text}")
        return value

    convert.__name__ = kind.__name__  # argparse names it in its errors
    return convert


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotune",
        description="Find the fastest way to compute each problem on this machine, and remember it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=help, description=help, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        made.set_defaults(command=run)
        made.add_argument("--store", metavar="PATH", type=Path, help="store file (default: in the cache folder)")
        made.add_argument("--workload", metavar="MODULE:ATTR", help="what to tune (default: the installed one)")
        return made

    def add_problem_options(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--threads",
            metavar="N",
            type=_positive(int),
            default=allowed_cores(),
            help="threads that will run the problems (default: the cores allowed, %(default)s)",
        )
        made.add_argument(
            "--layouts",
            metavar="L,L",
            type=_layouts,
            default=("NCHW", "NCHW"),
            help="layouts of input and output, or auto (default: NCHW,NCHW)",
        )

    made = command("warmup", _warmup, "time the candidates of every problem in the sources and store the fastest")
    made.add_argument("source", metavar="SOURCE", nargs="+", help="a model file, a file of problems, or one problem")
    add_problem_options(made)
    efforts = "; ".join(f"{name}: {e.candidates} candidates, {e.seconds:g} s" for name, e in EFFORTS.items())
    made.add_argument("--effort", choices=EFFORTS, default="quick", help=f"spent on a problem, at most ({efforts})")
    made.add_argument("--budget", metavar="SECONDS", type=_positive(float), help="limit on everything")
    made.add_argument("--json", action="store_true", help="print the result as JSON")

    made = command("table", _table, "print the best of every problem tuned on this device")
    made.add_argument("--format", choices=report.FORMATS, default="github")
    made.add_argument("--output", metavar="FILE", type=Path, help="write to a file, whole or not at all")

    made = command("show", _show, "say what the store holds")
    made.add_argument("--json", action="store_true", help="print as JSON")

    made = command("explain", _explain, "list every candidate of a problem: its time, or why it was left out")
    made.add_argument("problem", metavar="PROBLEM", help="a label or key from the table, or a source of problems")
    add_problem_options(made)
    made.add_argument("--json", action="store_true", help="print as JSON")

    made = command("doctor", _doctor, "say what is known of this machine, and measure its roofs")
    made.add_argument("--json", action="store_true", help="print as JSON")
    return parser
