"""Compare networks with open sizes and the same with fixed sizes: `python -m bench.dynamic --help`.

Both run in one process, in turn, on the arrays of `python -m bench.networks DIR`. A model with open sizes looks its
program up at every call, and has the layouts of its first input size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/dynamic.py` works too

import numpy as np
from tabulate import tabulate

from bench.compare import positive
from bench.engine import sample
from bench.models import counts
from bench.networks.problem import asked, problems

if TYPE_CHECKING:
    from cpuconv.graph.ir import Graph


def main(argv: Sequence[str] | None = None) -> int:
    """Print milliseconds of both, and the ratio, for each network and number of threads."""
    args = parser().parse_args(argv)
    found = []
    with problems(args.folder, asked(args.folder, args.networks), 1) as all_problems:
        for threads in args.threads:
            for name, problem in all_problems.items():
                fixed, dynamic = times(problem.path, problem.feed(), threads, args.rounds, args.seconds)
                ratio = statistics.median(a / b for a, b in zip(fixed, dynamic, strict=True))
                medians = statistics.median(fixed), statistics.median(dynamic)
                found.append({"network": name, "threads": threads, "seconds": medians, "ratio": ratio})
    rows = [
        (line["network"], line["threads"], *(f"{1e3 * each:.2f}" for each in line["seconds"]), f"{line['ratio']:.3f}")
        for line in found
    ]
    print(tabulate(rows, ("network", "threads", "fixed ms", "open ms", "fixed ÷ open"), disable_numparse=True))
    ratios = [line["ratio"] for line in found]
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, worst {min(ratios):.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.dynamic", description=__doc__)
    p.add_argument("folder", type=Path, metavar="DIR", help="folder with the files of bench.networks")
    p.add_argument("--networks", default="", metavar="NAMES", help="comma-separated (all in the folder)")
    p.add_argument("--threads", type=counts, default=(1,), help="as 1,2 (1)")
    p.add_argument("--rounds", type=positive, default=7, help="rounds (7)")
    p.add_argument("--seconds", type=float, default=0.1, help="seconds per timing (0.1)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    return p


def times(
    path: Path, feed: dict[str, np.ndarray], threads: int, rounds: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Return median seconds of a run per turn, with fixed and with open sizes; both outputs must agree."""
    import cpuconv
    from cpuconv.reading.onnx_reader import read

    graph = read(path)
    models = [cpuconv.compile(each, threads=threads) for each in (graph, opened(graph))]
    outputs = [model.run(feed) for model in models]
    for name, array in outputs[0].items():
        np.testing.assert_allclose(outputs[1][name], array, rtol=1e-3, atol=1e-3 * float(np.abs(array).max(initial=1)))
    calls = [lambda model=model, out=out: model.run(feed, out) for model, out in zip(models, outputs, strict=True)]
    found: tuple[list[float], list[float]] = [], []
    for turn in range(rounds):
        for at in (0, 1) if turn % 2 else (1, 0):
            found[at].append(statistics.median(sample(calls[at], seconds)))
    return found


def opened(graph: Graph) -> Graph:
    """Return the graph with all sizes of its inputs open except channels."""
    from cpuconv.graph.ir import Value

    def open_(name: str) -> Value:
        value = graph.value(name)
        shape = value.shape and tuple(dim if at == 1 else f"{name}.{at}" for at, dim in enumerate(value.shape))
        return replace(value, shape=shape)

    values = {name: replace(value, shape=None) for name, value in graph.values.items()}
    return replace(graph, values={**values, **{name: open_(name) for name in graph.inputs}})


if __name__ == "__main__":
    sys.exit(main())
