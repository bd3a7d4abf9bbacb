"""Compare operators other than convolutions with other engines, each as a network: `python -m bench.operators`.

The operators are recurrent layers of text recognisers, matrix multiplications at batch 1, the multiplications and
softmaxes of attention, and those of `bench.chains`. They are timed and checked as in `bench.models`. With --dynamic,
operators with weights run with dynamic quantisation, and are compared with cpuconv in float32, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tabulate import tabulate

from baselib.files import write_whole
from bench import options
from bench.chains import networks
from bench.models import notes, raced, settings, table
from bench.models import parser as models_parser
from bench.networks import Network
from bench.networks.model import save
from bench.networks.problem import NetworkProblem, keep, problems
from bench.networks.quantized import WEIGHTS, dynamic
from bench.peers import OWN_F32
from bench.report import replaced

PAGE = Path(__file__).parents[1] / "docs" / "performance" / "operators.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each number of threads; return 1 if nothing was measured."""
    p = options.parser(
        "operators",
        __doc__,
        "--threads",
        "--peers",
        "--rounds",
        "--seconds",
        "--json",
        rounds=3,
        seconds=0.05,
        peers="onnxruntime,openvino",
    )
    p.add_argument("names", nargs="*", default=["*"], metavar="PATTERN", help="patterns of names, as 'LSTM*' (all)")
    p.add_argument("--dynamic", choices=WEIGHTS, help="dynamic quantisation, with weights of int8 or uint8")
    p.add_argument(
        "--read", nargs="+", type=Path, default=(), metavar="FILE", help="read files of --json; measure none"
    )
    p.add_argument(
        "--page", metavar="MARKS", help=f"insert one table of all figures into {PAGE.name}, at these markers"
    )
    p.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of all engines (%(default)s)")
    args = p.parse_args(argv)
    code, figures = 0, [each for file in args.read for each in json.loads(file.read_text())]
    if not figures:
        code = measure(args, figures)
        options.write_json(args.json, figures)
    if args.page:
        write_whole({PAGE: replaced(PAGE, merged(figures), args.page)})
    return code


def measure(args: argparse.Namespace, figures: list[dict[str, Any]]) -> int:
    """Measure, print a table for each number of threads, and append the data of each to `figures`."""
    chosen = {each.name: each for each in networks() if any(fnmatch(each.name, name) for name in args.names)}
    if not chosen:
        raise SystemExit("No operator has such a name.")
    words = ["--peers", args.peers, "--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    words += ["--precision", "int8" if args.dynamic else args.precision]
    code = 0
    with tempfile.TemporaryDirectory(prefix="bench-operators-") as folder:
        for name, network in chosen.items():
            save(network.make(network.inputs), Path(folder) / f"{name}.onnx")
        with problems(Path(folder), chosen, 1) as found:
            asked = dict(dynamic_problems(found, chosen, args.dynamic)) if args.dynamic else found
            if not asked:
                raise SystemExit("None of these has weights that dynamic quantisation makes bytes of.")
            for threads in args.threads:
                data, code = raced(asked, settings(models_parser().parse_args([folder, *words]), 1, threads))
                data["precision"] = f"dynamic, {args.dynamic}" if args.dynamic else args.precision
                figures.append(data)
                print(table(data), *notes(data), "", sep="\n", flush=True)
                if code:
                    break
    return code


def merged(figures: Sequence[Mapping[str, Any]]) -> str:
    """One table of all figures: median milliseconds of the engines by operator, with a column for each measurement."""
    columns = [f"{data['precision']}, {data['threads']} thread{'s' * (data['threads'] > 1)}" for data in figures]
    rows: dict[str, list[str]] = {}
    for data in figures:
        for line in data["lines"]:
            times = [line["engines"].get(key) for key in data["engines"] if key != OWN_F32]
            cells = " / ".join("-" if each is None else f"{each['median'] * 1e3:.3g}" for each in times)
            rows.setdefault(line["label"], []).append(f"{cells}: {line['ratio']['median']:.2f}")
        for label, key in (("geometric mean", "geomean"), ("lowest", "worst")):
            rows.setdefault(label, []).append(f"{data[key]['median']:.2f}")
    ends = [[label, *rows.pop(label)] for label in ("geometric mean", "lowest")]
    body = tabulate([[label, *cells] for label, cells in rows.items()] + ends, ["operator", *columns], "pipe")
    names = [
        "; ".join(f"{each['name']} {each['version']}" for key, each in data["engines"].items() if key != OWN_F32)
        for data in figures
    ]
    order = "; ".join(f"{column}: {name.replace('; ', ' / ')}" for column, name in zip(columns, names, strict=True))
    text = (
        f"{figures[0]['cpu']}. Median milliseconds of {figures[0]['rounds']} rounds in turns, and the time of the best"
    )
    return f"{text} other engine over cpuconv's. {order}.\n\n{body}"


def dynamic_problems(
    found: Mapping[str, NetworkProblem], networks: Mapping[str, Network], weights: str
) -> Iterator[tuple[str, NetworkProblem]]:
    """Yield the problems with dynamically quantised weights; the reference is that of their own operators."""
    for name, full in found.items():
        made = dynamic(full.path, weights)
        if made is not None:
            yield name, NetworkProblem(made, keep(networks[name], made), full=full)


if __name__ == "__main__":
    sys.exit(main())
