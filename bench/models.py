"""Compare whole networks in cpuconv, ONNX Runtime, OpenVINO and MNN: `python -m bench.models --help`.

The files are those of `python -m bench.networks DIR`. Engines run in turn, each in its own process, as in
`bench.compare`. Outputs are compared with those of the reference operators; an engine whose output is wrong is not
compared.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from tabulate import tabulate

from bench import options
from bench.networks.problem import NetworkProblem, asked, problems
from bench.peers import OWN_F32
from bench.precisions import TABLE
from bench.race import Race
from bench.report import NOTHING, ratio_text, timing_dict
from bench.results import LineResult, mean_ratio
from bench.settings import Run, Settings, machine_name
from bench.shapes import Line

PEERS = ("onnxruntime", "openvino", "mnn")
ALL_PEERS = (*PEERS, "torch", "iree", "litert", "opencv", "tvm")  # PyTorch and LiteRT: modules made by onnx2torch
Data = Mapping[str, Any]  # the result of `to_dict`, also as read from JSON


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each batch and number of threads; return 1 if nothing was measured, 130 when interrupted."""
    args = parser().parse_args(argv)
    chosen = asked(args.folder, args.networks, args.set)
    found: list[dict[str, Any]] = []
    code = 0
    for batch, threads in itertools.product(args.batch, args.threads):
        with problems(args.folder, chosen, batch, TABLE[args.precision].quantized) as asked_for:
            data, code = raced(asked_for, settings(args, batch, threads))
        found.append(data | {"precision": args.precision, "set": args.set})
        print(table(found[-1]), *notes(data), "", sep="\n", flush=True)
        if code:
            break
    options.write_json(args.json, found)
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    common = "--threads", "--batch", "--peers", "--strategy", "--rounds", "--seconds", "--timeout", "--json"
    p = options.parser("models", __doc__, "folder", "--networks", "--set", *common, peers=",".join(PEERS))
    p.add_argument("--precision", default="float32", choices=TABLE, help="default: each engine's own (%(default)s)")
    return p


def settings(args: argparse.Namespace, batch: int, threads: int) -> Settings:
    """Return the settings of the options."""
    fields = {name: getattr(args, name) for name in ("rounds", "seconds", "strategy", "timeout")}
    peers = options.words(args.peers, ALL_PEERS, "--peers")
    return TABLE[args.precision].settings(peers, threads=threads, batch=batch, **fields)


def raced(found: Mapping[str, NetworkProblem], run: Settings) -> tuple[dict[str, Any], int]:
    """Time networks; return the figures and the command's exit code so far."""
    race = Race([Line(problem, name, "") for name, problem in found.items()], run, Console(stderr=True))
    race.measure_all()
    return to_dict(race.results, race.run), options.INTERRUPTED if race.interrupted else int(not race.results)


def to_dict(results: Sequence[LineResult], run: Run) -> dict[str, Any]:
    """Return all figures as plain data: times in seconds, ratios of the best peer's time to cpuconv's."""
    mean = mean_ratio(results, run.peers)
    ratios = [ratio for result in results if (ratio := result.ratio(run.peers))]
    fields = ("threads", "batch", "rounds", "seconds", "strategy")
    return {name: getattr(run.settings, name) for name in fields} | {
        "cpu": machine_name(),
        "engines": {key: {"name": name, "version": run.versions[key]} for key, name in run.names.items()},
        "geomean": mean and vars(mean),
        "own_geomean": (own := mean_ratio(results, (OWN_F32,))) and vars(own),
        "worst": vars(min(ratios, key=lambda ratio: ratio.median)) if ratios else None,
        "lines": [_line(result, run) for result in results],
    }


def _line(result: LineResult, run: Run) -> dict[str, Any]:
    ratio = result.ratio(run.peers)
    return {
        "label": result.line.label,
        "engines": {key: timing_dict(timing) for key in run.names if (timing := result.of(key))},
        "without": {key: _why(result, key, name) for key, name in run.names.items() if not result.of(key)},
        "best_peer": result.rival(run.peers),
        "ratio": ratio and vars(ratio),
        "own_ratio": (own := result.ratio((OWN_F32,))) and vars(own),
        "notes": result.notes,
    }


def _why(result: LineResult, key: str, name: str) -> str:
    """Return why an engine has no figure: "wrong" outputs, "failed", or "not timed" when the run ended."""
    forms = [measurement.forms[key] for measurement in result.runs if key in measurement.forms]
    if forms and not any(forms):
        return "wrong"
    return "failed" if any(note.startswith(f"{name} failed") for note in result.notes) else "not timed"


def table(data: Data, style: str = "simple") -> str:
    """Table with a row per network: median and fastest milliseconds of each engine, best peer's time over cpuconv's."""
    rows = []
    for line in data["lines"]:
        cells = [_milliseconds(line["engines"].get(key), line["without"].get(key)) for key in data["engines"]]
        best = data["engines"][line["best_peer"]]["name"] if line["best_peer"] else NOTHING
        rows.append([line["label"], *cells, best, ratio_text(line["ratio"]), ratio_text(line["own_ratio"])])
    if data["geomean"] or data["own_geomean"]:
        blank = [""] * (len(data["engines"]) + 1)
        rows.append(["geometric mean", *blank, ratio_text(data["geomean"]), ratio_text(data["own_geomean"])])
        rows.append(["worst", *blank, ratio_text(data["worst"]), ""])
    names = [engine["name"] for engine in data["engines"].values()]
    headers = ["network", *names, "best peer", "÷ cpuconv", "own fp32 ÷ cpuconv"]
    if OWN_F32 not in data["engines"]:
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    parts = f"threads: {data['threads']}, images: {data['batch']}, precision: {data.get('precision', 'float32')}"
    title = f"{data['cpu']}; {parts}; milliseconds: median of rounds (fastest run)"
    return f"{title}\n\n{tabulate(rows, headers, style, disable_numparse=True, stralign='left')}"


def notes(data: Data) -> list[str]:
    """Return messages on failures and wrong outputs."""
    return [f"{line['label']}: {note}." for line in data["lines"] for note in line["notes"]]


def _milliseconds(timing: Mapping[str, Any] | None, without: str | None) -> str:
    return without or NOTHING if timing is None else f"{timing['median'] * 1e3:.2f} ({timing['best'] * 1e3:.2f})"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: print, and leave no process
    sys.exit(main())
