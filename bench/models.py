"""Compare whole networks in cpuconv, ONNX Runtime, OpenVINO and MNN: `python -m bench.models --help`.

The files are those of `python -m bench.networks DIR`. Engines run in turn, each in its own process, as in
`bench.compare`. Outputs are compared with those of the reference operators; an engine whose output is wrong is not
compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/models.py` works too

from rich.console import Console
from tabulate import tabulate

from autotune.files import write_whole
from bench.compare import INTERRUPTED, STRATEGIES, positive
from bench.engine import LOADING, MEMORY, EngineError
from bench.networks.problem import NetworkProblem, asked, problems
from bench.peers import CPUCONV, OWN_F32
from bench.precisions import TABLE
from bench.race import Race, started
from bench.report import NOTHING, timing_dict
from bench.results import LineResult, mean_ratio
from bench.settings import PLAIN, Run, Settings, machine_name, words
from bench.shapes import Line

PEERS = ("onnxruntime", "openvino", "mnn")
ALL_PEERS = (*PEERS, "torch")  # PyTorch runs modules made by onnx2torch, where possible
LOADED = "resnet50"
APART = {"load": LOADING, "memory": MEMORY}  # measurements in new processes, by option: names of the figures
Data = Mapping[str, Any]  # the result of `to_dict`, also as read from JSON


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each batch and number of threads; return 1 if nothing was measured, 130 when interrupted."""
    args = parser().parse_args(argv)
    chosen = asked(args.folder, args.networks or (LOADED if args.apart == "load" else ""))
    found: list[dict[str, Any]] = []
    code = 0
    for batch, threads in itertools.product(args.batch, args.threads):
        run = settings(args, batch, threads)
        with problems(args.folder, chosen, batch, TABLE[args.precision].quantized) as asked_for:
            data, code = apart(asked_for, run, args.apart) if args.apart else raced(asked_for, run)
        data["precision"] = args.precision
        found.append(data)
        made = {"load": loads_table, "memory": memory_table}.get(args.apart, table)
        print(made(data), *notes(data), "", sep="\n", flush=True)
        if code:
            break
    if args.json:
        write_whole({args.json: json.dumps(found, indent=1) + "\n"})
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.models", description=__doc__)
    p.add_argument("folder", type=Path, metavar="DIR", help="folder with the files of bench.networks")
    p.add_argument("--networks", default="", metavar="NAMES", help="comma-separated (all in the folder)")
    p.add_argument("--threads", type=counts, default=(1,), help="threads of each engine, as 1,2 (1)")
    p.add_argument("--batch", type=counts, default=(1,), help="images, as 1,8 (1)")
    p.add_argument("--peers", default=",".join(PEERS), help="comma-separated, also torch (%(default)s)")
    p.add_argument("--precision", default="float32", choices=TABLE, help="default: each engine's own (%(default)s)")
    p.add_argument("--strategy", default=STRATEGIES[0], choices=STRATEGIES, help="strategy of cpuconv (cached)")
    p.add_argument("--rounds", type=positive, default=5, help="timings of each engine per network (5)")
    p.add_argument("--seconds", type=float, default=0.3, help="seconds per timing (0.3)")
    p.add_argument("--timeout", type=float, default=600.0, help="timeout per engine, in seconds (600)")
    other = p.add_mutually_exclusive_group()
    for part, help in (
        ("load", f"time loading instead, of {LOADED} where none is named"),
        ("memory", "measure what loading and two runs take of memory instead"),
    ):
        other.add_argument(f"--{part}", dest="apart", action="store_const", const=part, help=help)
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    return p


def counts(text: str) -> tuple[int, ...]:
    """Parse comma-separated positive integers."""
    return tuple(map(positive, text.split(",")))


def settings(args: argparse.Namespace, batch: int, threads: int) -> Settings:
    """Return the settings of the options."""
    precision = TABLE[args.precision]
    return Settings(
        threads=threads,
        rounds=args.rounds,
        seconds=args.seconds,
        layouts=(PLAIN,),
        strategy=args.strategy,
        peers=precision.asked(words(args.peers, ALL_PEERS, "--peers")),
        batch=batch,
        timeout=args.timeout,
        tolerance=precision.tolerance,
        own_tolerance=precision.own_tolerance,
        options=precision.options(),
        roofs=False,
    )


# --- runs -----------------------------------------------------------------------------------------------------------


def raced(found: Mapping[str, NetworkProblem], run: Settings) -> tuple[dict[str, Any], int]:
    """Time networks; return the figures and the command's exit code so far."""
    race = Race([Line(problem, name, "") for name, problem in found.items()], run, Console(stderr=True))
    race.measure_all()
    return to_dict(race.results, race.run), INTERRUPTED if race.interrupted else int(not race.results)


def apart(found: Mapping[str, NetworkProblem], run: Settings, what: str) -> tuple[dict[str, Any], int]:
    """Measure figures (`APART`) in new processes every round; the first one, which compiles kernels, does not count."""
    console = Console(stderr=True)
    names: dict[str, str] = {}
    lines: list[dict[str, Any]] = []
    for label, problem in found.items():
        figures: dict[str, list[dict[str, float]]] = {}
        failed: dict[str, str] = {}
        for turn in range(1 + run.rounds):
            with started(run, (lambda *_, **__: None) if turn or lines else console.print) as engines:
                names |= {engine.key: engine.name for engine in engines}
                for engine in engines:
                    try:
                        figures.setdefault(engine.key, []).append(getattr(engine, what)(problem))
                    except EngineError as error:
                        failed[engine.key] = f"{engine.name} failed: {error}"
        told = {key: _medians(each[1:]) for key, each in figures.items() if key not in failed}
        lines.append({"label": label, "engines": told, "notes": list(failed.values())})
    return _described(run) | {"engines": {key: {"name": name} for key, name in names.items()}, "lines": lines}, 0


def _medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: statistics.median(each[part] for each in figures) for part in figures[0]}


# --- figures ---------------------------------------------------------------------------------------------------------


def to_dict(results: Sequence[LineResult], run: Run) -> dict[str, Any]:
    """Return all figures as plain data: times in seconds, ratios of the best peer's time to cpuconv's."""
    mean = mean_ratio(results, run.peers)
    ratios = [ratio for result in results if (ratio := result.ratio(run.peers))]
    return _described(run.settings) | {
        "engines": {key: {"name": name, "version": run.versions[key]} for key, name in run.names.items()},
        "geomean": mean and vars(mean),
        "own_geomean": (own := mean_ratio(results, (OWN_F32,))) and vars(own),
        "worst": vars(min(ratios, key=lambda ratio: ratio.median)) if ratios else None,
        "lines": [_line(result, run) for result in results],
    }


def _described(run: Settings) -> dict[str, Any]:
    fields = ("threads", "batch", "rounds", "seconds", "strategy")
    return {"cpu": machine_name()} | {name: getattr(run, name) for name in fields}


def _line(result: LineResult, run: Run) -> dict[str, Any]:
    ratio = result.ratio(run.peers)
    return {
        "label": result.line.label,
        "engines": {key: timing_dict(timing) for key in run.names if (timing := result.of(key))},
        "without": {key: _why(result, key) for key in run.names if not result.of(key)},
        "best_peer": result.rival(run.peers),
        "ratio": ratio and vars(ratio),
        "own_ratio": (own := result.ratio((OWN_F32,))) and vars(own),
        "notes": result.notes,
    }


def _why(result: LineResult, key: str) -> str:
    """Return why an engine has no figure: "wrong" if no output was right, "failed" if it was not prepared."""
    return "wrong" if any(key in measurement.forms for measurement in result.runs) else "failed"


def table(data: Data) -> str:
    """Table with a row per network: median and fastest milliseconds of each engine, best peer's time over cpuconv's."""
    rows = []
    for line in data["lines"]:
        cells = [_milliseconds(line["engines"].get(key), line["without"].get(key)) for key in data["engines"]]
        best = data["engines"][line["best_peer"]]["name"] if line["best_peer"] else NOTHING
        rows.append([line["label"], *cells, best, _ratio(line["ratio"]), _ratio(line["own_ratio"])])
    if data["geomean"] or data["own_geomean"]:
        blank = [""] * (len(data["engines"]) + 1)
        rows.append(["geometric mean", *blank, _ratio(data["geomean"]), _ratio(data["own_geomean"])])
        rows.append(["worst", *blank, _ratio(data["worst"]), ""])
    names = [engine["name"] for engine in data["engines"].values()]
    headers = ["network", *names, "best peer", "÷ cpuconv", "own fp32 ÷ cpuconv"]
    if OWN_F32 not in data["engines"]:
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    return _table(data, rows, headers, "milliseconds: median of rounds (fastest run)")


def loads_table(data: Data) -> str:
    """Table with a row per network and engine: seconds of each part of loading."""
    rows = [
        [line["label"], data["engines"][key]["name"], *(f"{seconds:.3f}" for seconds in parts.values())]
        for line in data["lines"]
        for key, parts in line["engines"].items()
    ]
    return _table(data, rows, ["network", "engine", *LOADING], "seconds: medians of new processes")


def memory_table(data: Data) -> str:
    """Table with a row per network: peak and final megabytes of each engine, cpuconv's peak over each peer's."""
    rows = []
    for line in data["lines"]:
        most = {key: line["engines"][key]["most"] for key in line["engines"]}
        cells = [
            f"{most[key] / 1e6:.1f} ({line['engines'][key]['kept'] / 1e6:.1f})" if key in most else NOTHING
            for key in data["engines"]
        ]
        shares = [
            f"{most[CPUCONV] / most[key]:.2f}" if {CPUCONV, key} <= most.keys() else NOTHING
            for key in data["engines"]
            if key != CPUCONV
        ]
        rows.append([line["label"], *cells, *shares])
    names = {key: engine["name"] for key, engine in data["engines"].items()}
    headers = ["network", *names.values(), *(f"÷ {name}" for key, name in names.items() if key != CPUCONV)]
    return _table(data, rows, headers, "1e6 bytes resident beyond what imports take: most (in the end)")


def notes(data: Data) -> list[str]:
    """Return messages on failures and wrong outputs."""
    return [f"{line['label']}: {note}." for line in data["lines"] for note in line["notes"]]


def _table(data: Data, rows: list[list[str]], headers: list[str], unit: str) -> str:
    parts = f"threads: {data['threads']}, images: {data['batch']}, precision: {data.get('precision', 'float32')}"
    title = f"{data['cpu']}; {parts}; {unit}"
    return f"{title}\n\n{tabulate(rows, headers, disable_numparse=True, stralign='left')}"


def _milliseconds(timing: Mapping[str, Any] | None, without: str | None) -> str:
    return without or NOTHING if timing is None else f"{timing['median'] * 1e3:.2f} ({timing['best'] * 1e3:.2f})"


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['median']:.2f} ({ratio['best']:.2f})" if ratio else NOTHING


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: print, and leave no process
    sys.exit(main())
