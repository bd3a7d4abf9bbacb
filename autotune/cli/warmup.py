"""The command `autotune warmup`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from autotune.cli.display import display
from autotune.cli.options import (
    AUTO,
    FAILED,
    INTERRUPTED,
    OK,
    add_problem_options,
    batches,
    input_shape,
    layouts_text,
    load,
    new_file,
    part,
    positive,
    reading,
    say,
    threads,
)
from autotune.cli.wide import add_wide
from autotune.machine.cores import thread_counts
from autotune.machine.device import allowed_cores, fingerprint
from autotune.report import tables as report
from autotune.report.doctor import measure, missing_roofs
from autotune.report.table_rows import ProblemRow, Section, best_lines, note_of, whole_text
from autotune.store.store import Store, Use
from autotune.tuning import fleet
from autotune.tuning.effort import EFFORTS
from autotune.tuning.warmup import Outcome, warmup
from autotune.tuning.worker import Workers, describe
from autotune.wisdom import exchange
from autotune.workload import MISSED, WEIGHTS, Problem, SourceError, Workload, discover
from baselib.files import write_whole
from baselib.screen import terminal_width
from baselib.text import count_of


def run(options: argparse.Namespace) -> int:
    """Tune the problems of the sources, or missed ones, here or on a cluster; return the exit code."""
    spec, workload = discover(options.workload)
    store, outcome, begun = Store(options.store, strict=True), Outcome(), time.monotonic()
    missed = store.missed(fingerprint().key) if options.missed else []
    problems = _varied(workload, load(workload, options.source, options) + _missed(workload, missed), options)
    if not problems:
        return say("no problem was missed" if options.missed else "the sources contain no problem to tune", FAILED)
    if options.shard is not None:
        problems = fleet.shard(workload, problems, *options.shard)
    if options.dask is not None:
        return _on_cluster(workload, spec, problems, store, options)
    if options.roofs:
        _measure_roofs(workload, problems, store)
    budget = options.budget and max(0.0, options.budget - (time.monotonic() - begun))
    try:
        with display() as listener:
            warmup(
                workload,
                problems,
                store,
                options.effort,
                budget,
                listener,
                workers=Workers(spec),
                layouts=layouts_text(options),
                shape_limit=options.shape_limit,
                outcome=outcome,
            )
    except KeyboardInterrupt:
        done = len(outcome.tuned) + len(outcome.resumed)
        return say(
            f"interrupted: {done} tuned, {len(outcome.left)} left; run the same command to continue", INTERRUPTED
        )
    finally:
        ended = {problem.key for problem in problems if problem.task not in outcome.left}
        store.clear_missed(fingerprint().key, [key for key, _ in missed if key in ended])
    code, lines = _tell_outcome(workload, problems, store, outcome, time.monotonic() - begun, options)
    if not outcome.left:
        _race_whole(workload, store, options, again=bool(outcome.tuned))
        _tell_whole(workload, options, lines)
    return code


def _measure_roofs(workload: Workload, problems: Sequence[Problem], store: Store) -> None:
    """Measure the roofs that the problems' tables need and the store lacks, while the machine is still idle."""
    missing = missing_roofs(store, {problem.threads for problem in problems}, workload.dtypes)
    if not missing:
        return
    say(f"measuring the roofs of this device ({', '.join(count_of(count, 'thread') for count in missing)})", OK)
    try:
        measure(workload, store, counts=missing)
    except Exception as error:  # tables omit the roofs then
        say(f"the roofs cannot be measured: {describe(error)}", OK)


def _on_cluster(
    workload: Workload, spec: str, problems: Sequence[Problem], store: Store, options: argparse.Namespace
) -> int:
    """Tune on a dask cluster, and store its results in the local store."""
    try:
        results = fleet.tune_on_cluster(
            options.dask,
            workload,
            problems,
            fleet.Settings(spec, options.effort, layouts_text(options), options.shape_limit),
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    except ImportError:
        return say("--dask needs the package distributed: pip install 'cpuconv[dask]'", FAILED)
    exchange.into_store(results.wisdom, store)
    if options.json:
        content = {"store": str(store.path), "tuned": results.tuned, "failed": results.failed}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    counts = ", ".join(f"{len(tasks)} on {device}" for device, tasks in results.tuned.items())
    say(f"tuned: {counts}; {len(results.failed)} failed", OK)
    return FAILED if results.failed else OK


def _missed(workload: Workload, missed: Sequence[tuple[str, int]]) -> list[Problem]:
    """Return the problems that programs requested untuned, with their counts."""
    problems: list[Problem] = []
    for key, count in missed:
        with contextlib.suppress(SourceError):  # the key may be from other sources
            problems += [replace(problem, count=count, network=MISSED) for problem in workload.load(key)]
    return problems


def _varied(workload: Workload, problems: Sequence[Problem], options: argparse.Namespace) -> list[Problem]:
    """Return the problems for all requested weights and numbers of threads."""
    if options.threads == AUTO:
        problems = [
            replace(problem, key=workload.with_threads(problem.key, count), threads=count)
            for problem in problems
            for count in thread_counts(allowed_cores())
        ]
    if options.weights is None:
        return list(problems)
    asked = WEIGHTS if options.weights == "both" else (options.weights,)
    return [replace(problem, weights=weights) for weights in asked for problem in problems]


def _race_whole(workload: Workload, store: Store, options: argparse.Namespace, again: bool) -> None:
    """Time the plans of networks, whose parts are tuned now, against one another."""
    if options.layouts is not None or options.types or not options.race:
        return
    for source in options.source:
        for name, count, told in workload.race_whole(source, store, reading(options), options.effort, again):
            say(f"{name}, {count_of(count, 'thread')}: {told}", OK)


def _tell_whole(workload: Workload, options: argparse.Namespace, lines: Sequence[ProblemRow]) -> None:
    """Time whole networks with the current tuning, and print the share of the table's rows in that time."""
    if options.layouts is not None or options.types:
        return
    for source in options.source:
        for name, count, seconds in workload.time_whole(source, reading(options)):
            rows = [line for line in lines if line.use.network == name and line.use.threads == count]
            say(f"{name}, {count_of(count, 'thread')}: {whole_text(seconds, rows)}", OK)


def _tell_outcome(
    workload: Workload,
    problems: Sequence[Problem],
    store: Store,
    outcome: Outcome,
    seconds: float,
    options: argparse.Namespace,
) -> tuple[int, list[ProblemRow]]:
    """Print the table and a summary; return the exit code and the table's lines."""
    layouts = layouts_text(options)
    uses = sorted(dict.fromkeys(Use.of(problem, layouts) for problem in problems), key=lambda use: use.threads)
    lines = _sound_lines(workload, store, uses, options)
    sections = [Section(fingerprint().to_dict(), lines)]
    if options.html is not None:
        write_whole({options.html: report.render(sections, "html")})
    if options.json:
        content = {
            "device": fingerprint().to_dict(),
            "store": str(store.path),
            "seconds": seconds,
            "tuned": list(outcome.tuned),
            "resumed": outcome.resumed,
            "failed": outcome.failed,
            "left": outcome.left,
            "elsewhere": outcome.elsewhere,
            "problems": [line.record() for line in lines],
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(report.shown(sections, None if options.wide else terminal_width()), end="")
    counts = f"{len(outcome.tuned)} tuned in {seconds:.1f} s, {len(outcome.resumed)} tuned before"
    if outcome.elsewhere:
        counts += f", {len(outcome.elsewhere)} being tuned by another warmup"
    if late := len(outcome.left) - len(outcome.elsewhere):
        counts += f", {late} skipped for lack of time"
    if outcome.failed:
        counts += f", {len(outcome.failed)} without a working candidate (see 'autotune explain')"
    say(counts, OK)
    failed = outcome.failed or not (outcome.tuned or outcome.resumed or outcome.elsewhere)
    return FAILED if failed else OK, lines


def _sound_lines(
    workload: Workload, store: Store, uses: Sequence[Use], options: argparse.Namespace
) -> list[ProblemRow]:
    """Return the best lines; if one exceeds a roof that was measured on a busy machine, measure the roofs again."""
    lines = best_lines(store, fingerprint().key, workload, uses)
    counts = {line.use.threads for line in lines if note_of([line])} if options.roofs else set()
    if not counts:
        return lines
    say("rows above the roofs, which were measured while the machine was busy: measuring these again", OK)
    try:
        measure(workload, store, counts=counts, keep_higher=True)
    except Exception as error:  # the table then uses the old roofs
        say(f"the roofs cannot be measured: {describe(error)}", OK)
    return best_lines(store, fingerprint().key, workload, uses)


def add_options(made: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    made.add_argument("source", metavar="SOURCE", nargs="*", help="a model file, a file of problems, or one problem")
    made.add_argument(
        "--missed", action="store_true", help="tune problems that programs requested and that were not tuned"
    )
    more = "; auto: 1, 2, 4, … up to those, and compare them"
    add_problem_options(made, threads, more)
    efforts = "; ".join(f"{name}: {e.candidates} candidates, {e.seconds:g} s" for name, e in EFFORTS.items())
    made.add_argument("--effort", choices=EFFORTS, default="quick", help=f"limits per problem ({efforts})")
    made.add_argument(
        "--budget", metavar="SECONDS", type=positive(float), help="limit of the whole warmup, including roofs"
    )
    made.add_argument("--shape-limit", metavar="SECONDS", type=positive(float), help="limit per problem")
    made.add_argument(
        "--weights",
        choices=(*WEIGHTS, "both"),
        help="time with weights in cache (warm) or in memory (cold; default: cold for models, warm for problems)",
    )
    made.add_argument(
        "--batches",
        metavar="N,N",
        type=batches,
        default=(),
        help="batch sizes of models that leave the batch open (default: 1)",
    )
    made.add_argument(
        "--precision", metavar="NAME", default="", help="precision for which models will be compiled: bfloat16"
    )
    made.add_argument(
        "--input",
        metavar="NAME=1x3x224x224",
        type=input_shape,
        action="append",
        default=[],
        help="shape of an input that a model leaves open; may be repeated",
    )
    made.add_argument(
        "--shard", metavar="I/N", type=part, help="tune the I-th of N parts of equal cost, one part per machine"
    )
    made.add_argument(
        "--dask", metavar="ADDRESS", help="tune on each kind of device of a dask cluster, given its scheduler's address"
    )
    made.add_argument(
        "--no-roofs",
        dest="roofs",
        action="store_false",
        help="do not measure the roofs of this device (about a second per number of threads, once); tables then"
        " omit 'of roof' and 'bound by'",
    )
    made.add_argument(
        "--no-race",
        dest="race",
        action="store_false",
        help="do not time the alternative plans of a network (a second or two per plan)",
    )
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    made.add_argument(
        "--html", metavar="FILE", type=new_file, help="also write an HTML page (may be combined with --json)"
    )
    add_wide(made)
