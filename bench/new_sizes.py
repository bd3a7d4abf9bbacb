"""Time inputs whose sizes all differ, in cpuconv, ONNX Runtime and OpenVINO: `python -m bench.new_sizes --help`.

The engines run in turn, each in its own process: a network on inputs of different sizes, and then on the same inputs
again. Networks are the text recogniser and detector of PP-OCRv4, or an ONNX file: sizes along --axes are drawn from
--from to --to. With --memory, processes run random sizes and batches, and report their memory.

Columns: *new* is the mean time of an input in the first pass (in brackets the worst); *again* in later passes; *cost of
a new size* is the difference of the two for each input, its median (in brackets the worst); *compiled* counts kernels
in the first pass (in brackets all kernels added to the cache, also by helper processes).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from tabulate import tabulate

from bench import options
from bench.first import NAMES
from bench.options import counts, positive
from bench.peers import CPUCONV
from bench.peers.base import missing
from bench.report import NOTHING
from bench.settings import machine_name
from bench.sizes import caches
from bench.sizes.inputs import SizedNetwork, ocr_networks, open_network
from bench.sizes.measuring import Job, ask, largest_errors

TOLERANCE = 1e-3  # largest difference between engines, over the largest element of an output
CLOCKS = ("wall", "processor")
OCR = ("recogniser", "detector")
MB = 1e-6


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; return 1 if an engine failed or results differ, 130 when interrupted."""
    args = parser().parse_args(argv)
    engines = [key for key in options.words(args.engines, NAMES, "--engines") or NAMES if not missing(key)]
    console = Console(stderr=True, highlight=False)
    for key in options.words(args.engines, NAMES, "--engines") or NAMES:
        if reason := missing(key):
            console.print(reason)
    lines: list[dict[str, Any]] = []
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="bench-sizes-") as folder:
        asked = itertools.product(networks(args, Path(folder)), args.threads)
        try:
            for network, threads in asked:
                figures = {}
                for key in engines:
                    console.print(f"{network.name}, {threads} threads: {NAMES[key]}")
                    figures[key] = measured(args, key, threads, network, Path(folder))
                line = {"network": network.name, "sizes": network.title, "threads": threads, "engines": figures}
                lines.append(line | {"errors": compared(figures, Path(folder))})
        except KeyboardInterrupt:
            interrupted = True
    data = {
        "cpu": machine_name(),
        "cache": args.cache,
        "pack": "" if args.cache == "none" else caches.pack_title(),
        "clock": args.clock,
        "wait": args.wait,
        "memory": args.memory and [args.runs, args.batches],
        "lines": lines,
    }
    print(memory_table(data) if args.memory else times_table(data))
    print(*remarks(data), sep="\n")
    options.write_json(args.json, data)
    wrong = any(error > TOLERANCE for line in lines for error in line["errors"].values())
    failed = wrong or any("failed" in each for line in lines for each in line["engines"].values())
    return options.INTERRUPTED if interrupted else int(failed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("new_sizes", __doc__, "--threads", "--timeout", "--json", timeout=1800.0)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument("models", nargs="*", default=OCR, metavar="MODEL", help=f"{', '.join(OCR)}, or ONNX files (both)")
    p.add_argument("--engines", default="", metavar="NAMES", help=f"comma-separated, of {', '.join(NAMES)} (all)")
    p.add_argument(
        "--cache", default="empty", choices=caches.CACHES, help="; ".join(f"{k}: {v}" for k, v in caches.CACHES.items())
    )
    p.add_argument("--clock", default=CLOCKS[0], choices=CLOCKS, help="times in the table (%(default)s)")
    p.add_argument("--count", type=positive, help="inputs (200 of the recogniser, 40 of others)")
    p.add_argument("--again", type=positive, default=1, help="further passes; the shortest times count (1)")
    p.add_argument("--seed", type=int, default=1, help="seed of sizes and elements (1)")
    p.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="run other sizes for this time before the first pass"
    )
    p.add_argument("--base", default="1,3,640,640", metavar="SIZES", help="shape of a file's input (1,3,640,640)")
    p.add_argument("--axes", default="2,3", metavar="AXES", help="axes of a file's input whose sizes are drawn (2,3)")
    p.add_argument(
        "--from", type=counts, dest="low", default=(320,), metavar="SIZES", help="smallest size, or one per axis (320)"
    )
    p.add_argument(
        "--to", type=counts, dest="high", default=(960,), metavar="SIZES", help="largest size, or one per axis (960)"
    )
    p.add_argument("--step", type=positive, default=32, help="sizes are multiples of it (32)")
    p.add_argument("--memory", action="store_true", help="measure memory instead of time")
    p.add_argument("--runs", type=positive, default=600, help="runs for --memory (600)")
    p.add_argument("--batches", type=positive, default=4, help="max. batch size for --memory (4)")
    p.add_argument("--compare", type=int, default=20, metavar="N", help="inputs whose outputs are compared (20)")
    return p


def networks(args: argparse.Namespace, folder: Path) -> list[SizedNetwork]:
    """Return the networks that the options name."""
    ocr = ocr_networks() if {*args.models} & {*OCR} else {}
    base, axes = (tuple(map(int, text.split(","))) for text in (args.base, args.axes))
    drawn = args.low, args.high, args.step
    found = [ocr[each] if each in ocr else open_network(Path(each), folder, base, axes, *drawn) for each in args.models]
    return [replace(each, count=args.count or each.count, seed=args.seed) for each in found]


def measured(args: argparse.Namespace, key: str, threads: int, network: SizedNetwork, folder: Path) -> dict[str, Any]:
    """Return the figures of a process; for cpuconv with the number of kernels added to its cache."""
    job = Job(key, threads, network, args.again, args.wait, args.compare, str(folder / f"{key}.npz"))
    if args.memory:
        job = replace(job, runs=args.runs, largest_batch=args.batches)
    with caches.environment(args.cache) as variables:
        before = caches.kernel_files(variables)
        figures = ask(job, variables, args.timeout)
        return figures | ({"cached": caches.kernel_files(variables) - before} if key == CPUCONV else {})


def compared(figures: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, float]:
    """Return the largest difference of other engines' outputs from cpuconv's, by key."""
    files = {key: str(folder / f"{key}.npz") for key in figures if "wall" in figures[key]}
    return largest_errors(files, CPUCONV) if CPUCONV in files else {}


# --- tables ---------------------------------------------------------------------------------------------------------


def summary(figures: Mapping[str, Any], clock: str) -> dict[str, float]:
    """Return milliseconds of one engine: mean and worst of the first pass and of later ones, cost of a new size."""
    first, *later = figures[clock]
    again = [min(times) for times in zip(*later, strict=True)]
    costs = [new - old for new, old in zip(first, again, strict=True)]
    seconds = {
        "new": statistics.fmean(first),
        "worst": max(first),
        "again": statistics.fmean(again),
        "again_worst": max(again),
        "cost": statistics.median(costs),
        "cost_worst": max(costs),
    }
    return {name: 1e3 * each for name, each in seconds.items()}


def times_table(data: Mapping[str, Any]) -> str:
    """Table with a row per network, number of threads and engine; then the best peer's mean over cpuconv's."""
    rows = []
    for line in data["lines"]:
        found = {k: summary(each, data["clock"]) for k, each in line["engines"].items() if data["clock"] in each}
        for key, each in found.items():
            whole = line["engines"][key]
            compiled = f"{sum(whole['compiled'])} ({whole['cached']})" if key == CPUCONV else ""
            times = [f"{each[a]:.1f} ({each[b]:.1f})" for a, b in (("new", "worst"), ("again", "again_worst"))]
            cost = f"{each['cost']:.2f} ({each['cost_worst']:.1f})"
            rows.append([line["network"], line["threads"], NAMES[key], *times, cost, compiled])
        peers = [each for key, each in found.items() if key != CPUCONV]
        if CPUCONV in found and peers:
            ratios = [f"{min(each[name] for each in peers) / found[CPUCONV][name]:.2f}" for name in ("new", "again")]
            rows.append([line["network"], line["threads"], "best peer ÷ cpuconv", *ratios, "", ""])
    headers = ["network", "threads", "engine", "new", "again", "cost of a new size", "compiled"]
    title = f"ms of {data['clock']} time; sizes of {_sizes(data)}"
    return f"{_title(data)}\n{title}\n\n{tabulate(rows, headers, disable_numparse=True)}"


def memory_table(data: Mapping[str, Any]) -> str:
    """Table with a row per network, number of threads and engine: memory in MB (1e6 bytes), ratio to ONNX Runtime's."""
    parts = ("imported", "made", "first", "10%", "40%", "all", "peak")
    rows = []
    for line in data["lines"]:
        found = {key: each["memory"] for key, each in line["engines"].items() if "memory" in each}
        rival = found.get("onnxruntime")
        for key, each in found.items():
            ratio = f"{each['all'] / rival['all']:.2f}" if rival else NOTHING
            megabytes = (f"{MB * each[part]:.0f}" for part in parts)
            rows.append([line["network"], line["threads"], NAMES[key], *megabytes, ratio])
    runs, batches = data["memory"]
    headers = ["network", "threads", "engine", *parts, "all ÷ ONNX Runtime"]
    title = f"1e6 bytes resident; {runs} runs of random sizes of {_sizes(data)}, batches of 1 to {batches}"
    return f"{_title(data)}\n{title}\n\n{tabulate(rows, headers, disable_numparse=True)}"


def _title(data: Mapping[str, Any]) -> str:
    wait = f"; first pass after {data['wait']:.0f} s" if data["wait"] else ""
    pack = f" ({data['pack']})" if data["pack"] else ""
    return f"{data['cpu']}; cpuconv has {caches.CACHES[data['cache']]}{pack}{wait}"


def _sizes(data: Mapping[str, Any]) -> str:
    return ", ".join(dict.fromkeys(f"{line['network']}: {line['sizes']}" for line in data["lines"]))


def remarks(data: Mapping[str, Any]) -> list[str]:
    """Return messages on failures and on differences of results."""
    found = []
    for line in data["lines"]:
        about = f"{line['network']}, {line['threads']} threads"
        for key, each in line["engines"].items():
            name = NAMES[key]
            if "failed" in each:
                found.append(f"{about}: {name} failed: {each['failed']}")
            elif each.get("changed"):
                found.append(f"{about}: {name} gave other bits for {len(each['changed'])} equal inputs")
        errors = [f"{NAMES[key]} {error:.1e}" for key, error in line["errors"].items()]
        if errors:
            wrong = any(error > TOLERANCE for error in line["errors"].values())
            verdict = f"DIFFER by more than {TOLERANCE:g}" if wrong else "agree"
            found.append(f"{about}: results {verdict}; largest differences from cpuconv: {', '.join(errors)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
