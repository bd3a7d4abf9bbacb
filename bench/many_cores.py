"""Measure how networks and layers scale over the cores of this machine: `python -m bench.many_cores --help`.

Eight networks, whose files `python -m bench.networks DIR` makes, and twelve layers run on 1, 2, 4, … threads in cpuconv
and in ONNX Runtime, PyTorch and OpenVINO, if installed. The most important measurements come first; those that the time
limit excludes are listed. A profile of each network on all threads divides its time into parts.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from tabulate import tabulate

import cpuconv
from baselib.files import write_whole
from bench import models, options, roofs, shapes
from bench.networks.problem import NetworkProblem, asked, problems
from bench.peers import CPUCONV
from bench.precisions import TABLE
from bench.race import Race
from bench.results import geomean
from bench.settings import Settings, machine_name
from cpuconv.network.reports.profile import Profile
from cpuconv.network.reports.timing import Span
from cpuconv.runtime.threads import maximum_threads

NETWORKS = (
    "resnet50", "resnet18", "mobilenet_v2", "efficientnet_b0", "densenet121", "inception_v1", "convnext_tiny", "u_net",
)  # fmt: skip
LAYERS = (
    "resnet50:(conv1|res2a_2b|res2a_2c|res3b_2b|res4b_2a|res5b_2b|res5b_2c)$|vgg16:conv3_2|mobilenetv2:(dw144|pw144_24)"
    "|inceptionv3:1x7|convnext:dw96"
)
PEERS = ("onnxruntime", "torch", "openvino")
RUNS = 20  # runs of a profile
PARTS = ("work", "slower", "imbalance", "serial", "joins")
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """One table: networks or layers on a number of threads.

    Attributes
    ----------
    kind : str
        "networks" or "layers".
    threads, batch : int
    precision : str
        A key of `bench.precisions.TABLE`.
    """

    kind: str
    threads: int
    batch: int = 1
    precision: str = "float32"

    def __str__(self) -> str:
        return f"{self.kind}, {self.precision}, batch {self.batch}, {self.threads} threads"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write JSON and a page, and print the page."""
    args = parser().parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    console = Console(stderr=True, highlight=False)
    paths = {name: args.folder / f"{name}.onnx" for name in asked(args.folder, args.networks, args.set)}
    found: dict[str, Any] = {"cpu": machine_name(), "cores": maximum_threads(), "threads": args.threads}
    found |= {"seconds": {}, "roofs": {}, "tables": [], "profiles": {}, "left_out": []}
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("roofs", lambda: {count: roofs.measure(count).fma_gflops for count in args.threads}),
        ("profiles", lambda: {name: profiled(path, args.threads) for name, path in paths.items()}),
        *((str(stage), partial(table, stage, args, paths)) for stage in stages(args.threads)),
    ]
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # at the limit a table keeps the lines that are done
    for label, measure in steps:
        begun = time.monotonic()
        if begun >= end:
            found["left_out"].append(label)
            continue
        signal.setitimer(signal.ITIMER_REAL, end - begun)
        try:
            measured = measure()
        except KeyboardInterrupt:
            if time.monotonic() < end:
                raise
            measured = {}
        signal.setitimer(signal.ITIMER_REAL, 0)
        if label in found:
            found[label] = measured
        elif measured.get("lines"):
            found["tables"].append(measured)
        if time.monotonic() >= end:
            found["left_out"].append(f"all or part of {label}")
        found["seconds"][label] = time.monotonic() - begun
        console.print(f"{label}: {found['seconds'][label]:.0f} s")
        options.write_json(args.json, found)
    text = page(found)
    if args.page:
        write_whole({args.page: text})
    print(text)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    most = maximum_threads()
    powers = ",".join(map(str, sorted({most, *(1 << at for at in range(most.bit_length()))})))
    common = "folder", "--networks", "--set", "--threads", "--peers", "--rounds", "--seconds", "--json"
    defaults = {"networks": ",".join(NETWORKS), "threads": powers, "peers": ",".join(PEERS)}
    p = options.parser("many_cores", __doc__, *common, **defaults, rounds=3, seconds=0.1)
    p.add_argument("--minutes", type=float, default=8.0, help="time limit of all measurements (8)")
    p.add_argument("--page", type=Path, metavar="FILE", help="write the page, in Markdown")
    return p


def stages(threads: Sequence[int]) -> list[Stage]:
    """Return the stages, the most important first: most threads and one, then the numbers between."""
    ends = list(dict.fromkeys((max(threads), min(threads))))
    between = [count for count in sorted(threads, reverse=True) if count not in ends]
    found = [Stage("networks", count) for count in ends]
    found += [Stage("networks", count, precision=name) for name in ("bf16", "int8") for count in ends]
    found += [Stage("layers", count) for count in ends]
    found += [Stage("networks", count) for count in between]
    found += [Stage("networks", count, batch=8) for count in (*ends, *between[:1])]
    found += [Stage("layers", count) for count in between]
    return found + [Stage("networks", count, precision=name) for name in ("bf16", "int8") for count in between]


def table(stage: Stage, args: argparse.Namespace, paths: Mapping[str, Path]) -> dict[str, Any]:
    """Measure the engines on one stage; the result has the form of `bench.models.to_dict`."""
    precision, peers = TABLE[stage.precision], tuple(args.peers.split(","))
    common: dict[str, Any] = {"threads": stage.threads, "rounds": args.rounds, "seconds": args.seconds}
    if stage.kind == "layers":
        lines, settings = shapes.load(pattern=LAYERS), Settings(**common, peers=peers, roofs=False)
        race = Race(lines, settings, Console(stderr=True, quiet=True))
        race.measure_all()
        return {**models.to_dict(race.results, race.run), **asdict(stage)}
    settings = precision.settings(peers, **common, batch=stage.batch)
    with problems(
        args.folder, asked(args.folder, ",".join(paths), args.set), stage.batch, precision.quantized
    ) as found:
        return {**models.raced(found, settings)[0], **asdict(stage)}


def profiled(path: Path, threads: Sequence[int]) -> dict[str, Any]:
    """Profile a network on the most threads: parts of a run in seconds, and its slowest operators."""
    feed = NetworkProblem(path, path.with_suffix(".npz")).feed()
    most = max(threads)
    one, many = (cpuconv.compile(path, threads=count).profile(feed, RUNS, watch=True) for count in (1, most))
    assert one.watched is not None and many.watched is not None  # because of watch=True
    busy = sum(span.end - span.start for span in one.watched.spans)
    alone = {row.name: row.seconds for row in one.rows}
    rows = [
        {"name": row.name, "op": row.op, "algorithm": row.algorithm, "seconds": row.seconds, "one": alone.get(row.name)}
        for row in sorted(many.rows, key=lambda row: -row.seconds)[:10]
    ]
    return {"one": one.seconds, "seconds": many.seconds, "parts": parts(many, most, busy), "rows": rows}


def parts(profile: Profile, threads: int, busy: float) -> dict[str, float]:
    """Divide the seconds of a watched run into parts, whose sum is the run.

    Parameters
    ----------
    profile : Profile
        A profile with `watched`.
    threads : int
    busy : float
        Seconds that one thread takes for the same work.

    Returns
    -------
    dict of str to float
        work: `busy` over the threads. slower: extra time of the same work because threads share memory and caches.
        imbalance: threads wait for the last one of an operator. serial: operators that one thread runs. joins: time
        between operators, when no thread works. rows: number of operators that threads share.
    """
    assert profile.watched is not None
    by_work: dict[int, list[Span]] = {}
    for span in profile.watched.spans:
        by_work.setdefault(span.work, []).append(span)
    now = serial = shared = shared_busy = joins = 0.0
    count = 0
    for spans in sorted(by_work.values(), key=lambda spans: min(span.start for span in spans)):
        start, end = min(span.start for span in spans), max(span.end for span in spans)
        joins += max(0.0, start - now)
        taken, now = max(0.0, end - max(start, now)), max(now, end)
        if len({span.worker for span in spans}) == 1:
            serial += taken
        else:
            count += 1
            shared += taken
            shared_busy += sum(span.end - span.start for span in spans)
    joins += max(0.0, profile.watched.seconds - now)
    work = min(max(0.0, busy - serial), shared_busy) / threads
    return {
        "work": work,
        "slower": shared_busy / threads - work,
        "imbalance": shared - shared_busy / threads,
        "serial": serial,
        "joins": joins,
        "rows": count,
    }


def page(found: Mapping[str, Any]) -> str:
    """Return all measurements as text with tables."""
    tables = found["tables"]
    versions = {each["name"]: each["version"] for one in tables for each in one["engines"].values()}
    told = [
        f"# {found['cpu']}, {found['cores']} cores",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        "## Ratios to the fastest other engine",
        "Its time over ours, geometric mean and worst, medians; above 1 ours is faster.",
        _table(("what", "precision", "batch", "threads", "mean", "worst", "worst line"), map(_summary, tables)),
        "## Scaling",
        "Efficiency: time on one thread over the time on n threads, over n, of each engine. "
        f"That of the FMA peak bounds it: {_peaks(found['roofs'])}.",
        *(_scaling(tables, *key) for key in dict.fromkeys(map(_kind, tables))),
    ]
    if found["profiles"]:
        told += ["## Where the time of a run goes", _parts(found["profiles"])]
    told += ["## Milliseconds", *(models.table(one, "pipe") for one in tables)]
    told += [f"{line['label']}: {note}." for one in tables for line in one["lines"] for note in line["notes"]]
    if found["left_out"]:
        told += [f"Left out, as time was up: {'; '.join(found['left_out'])}."]
    return "\n\n".join(told) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def _peaks(peaks: Mapping[int, float]) -> str:
    one = peaks.get(1, 0.0)
    told = (f"{peak:.0f} GFLOP/s on {count} ({peak / count / one:.0%})" for count, peak in peaks.items() if one)
    return ", ".join(told) or "which was not measured"


def _kind(one: Table) -> tuple[str, str, int]:
    return one["kind"], one["precision"], one["batch"]


def _summary(one: Table) -> tuple[object, ...]:
    of_worst = (line["label"] for line in one["lines"] if line["ratio"] == one["worst"])
    figures = (f"{ratio['median']:.2f}" if ratio else "" for ratio in (one["geomean"], one["worst"]))
    return (*_kind(one), one["threads"], *figures, next(of_worst, "") if one["worst"] else "")


def _medians(one: Table, engine: str) -> dict[str, float]:
    return {line["label"]: line["engines"][engine]["median"] for line in one["lines"] if engine in line["engines"]}


def _scaling(tables: Sequence[Table], kind: str, precision: str, batch: int) -> str:
    """Table with a row per line and engine: efficiency on each number of threads."""
    here = [one for one in tables if _kind(one) == (kind, precision, batch)]
    single = next((one for one in here if one["threads"] == 1), None)
    many = sorted((one for one in here if one["threads"] > 1), key=lambda one: one["threads"])
    if single is None or not many:
        return ""
    rows = []
    for engine, told in single["engines"].items():
        base = _medians(single, engine)
        figures = [
            {name: base[name] / time / one["threads"] for name, time in _medians(one, engine).items() if name in base}
            for one in many
        ]
        for label in base if engine == CPUCONV else ():
            rows.append((label, told["name"], *(f"{each[label]:.0%}" if label in each else "" for each in figures)))
        means = (f"{geomean(each.values()):.0%}" if each else "" for each in figures)
        rows.append(("geometric mean", told["name"], *means))
    heads = ("line", "engine", *(f"{one['threads']} threads" for one in many))
    return f"{kind}, {precision}, batch {batch}\n\n{_table(heads, rows)}"


def _parts(profiles: Mapping[str, Any]) -> str:
    """Table with a row per network: parts of the run as shares, and µs of a join."""
    rows = []
    for name, one in profiles.items():
        parts = one["parts"]
        total = sum(parts[part] for part in PARTS)
        join = parts["joins"] / parts["rows"] * 1e6 if parts["rows"] else 0.0
        rows.append((name, f"{one['one'] * 1e3:.2f}", f"{one['seconds'] * 1e3:.2f}",
                     *(f"{parts[part] / total:.0%}" for part in PARTS), f"{join:.1f}"))  # fmt: skip
    return _table(("network", "ms, one thread", "ms", *PARTS, "µs between operators"), rows)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C, and leave no process
    sys.exit(main())
