"""Compare the errors of networks in bfloat16 and "auto" with those of OpenVINO: `python -m bench.errors --help`.

A figure is the relative root mean square of the difference from cpuconv's float32, over the outputs of several random
inputs. In some networks the error varies much between inputs, so the figure is over all inputs together. Rows without
an order are compared with the nearest row, and the figure is the largest median of an input. OpenVINO runs by its hint
bf16, which is its default on CPUs with instructions for bfloat16.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tabulate import tabulate

import cpuconv
from bench import options
from bench.networks import Network
from bench.networks.problem import asked
from bench.oracle import rows_error
from bench.peers.base import Form, NetworkPeer, missing
from bench.peers.cpuconv_peer import CpuconvPeer
from bench.peers.openvino_peer import OpenVinoPeer
from bench.report import NOTHING

AUTO = "cpuconv auto"
ENGINES: Mapping[str, NetworkPeer] = {
    "cpuconv": CpuconvPeer(strategy="heuristic", precision="bfloat16"),
    "OpenVINO": OpenVinoPeer("bf16"),
}
_SAMPLES = range(1001, 1009)  # seeds of the inputs by which "auto" selects; others are measured


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each network; return 1 if OpenVINO is not installed."""
    args = parser().parse_args(argv)
    for reason in filter(None, (missing(engine.package) for engine in ENGINES.values())):
        print(reason, file=sys.stderr)
        return 1
    found = {}
    for name, network in asked(args.folder, args.networks, args.set).items():
        begun = time.perf_counter()
        found[name] = errors(network, args.folder / f"{name}.onnx", args.feeds, args.threads, args.auto)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        options.write_json(args.json, found)
    print(table(found))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("errors", __doc__, "folder", "--networks", "--set", "--json")
    p.add_argument("--feeds", type=options.positive, default=8, help="random inputs of each network (%(default)s)")
    p.add_argument("--threads", type=options.positive, default=1, help="threads of each engine (%(default)s)")
    p.add_argument("--auto", action="store_true", help='also precision="auto", which times candidates: minutes')
    return p


def errors(network: Network, path: Path, feeds: int, threads: int, auto: bool = False) -> dict[str, float]:
    """Return relative RMS errors of a network by engine, over the outputs of inputs 1 to `feeds`."""
    arrays = network.feed(network.inputs)
    exact = CpuconvPeer(strategy="heuristic").network(path, arrays, threads)[0]
    forms = {name: engine.network(path, arrays, threads)[0] for name, engine in ENGINES.items()}
    if auto:
        forms[AUTO] = automatic(network, path, arrays, threads)
    squares = dict.fromkeys(forms, 0.0)
    medians = dict.fromkeys(forms, 0.0)
    total = 0.0
    for seed in range(1, feeds + 1):
        for name, array in network.feed(network.inputs, seed).items():
            np.copyto(arrays[name], array)  # engines read these very arrays
        right = given(exact)
        total += sum(float(np.square(each).sum()) for each in right)
        for name, form in forms.items():
            found = given(form)
            squares[name] += sum(float(np.square(mine - each).sum()) for mine, each in zip(found, right, strict=True))
            medians[name] = max(medians[name], rows_error(found, right) if network.unordered else 0.0)
    return medians if network.unordered else {name: math.sqrt(square / total) for name, square in squares.items()}


def automatic(network: Network, path: Path, arrays: Mapping[str, np.ndarray], threads: int) -> Form:
    """Prepare the network as precision="auto" selects it, by samples of its own."""
    samples = [network.feed(network.inputs, seed) for seed in _SAMPLES]
    model = cpuconv.compile(path, threads=threads, precision="auto", samples=samples)
    outputs = model.run(arrays)
    return Form(AUTO, lambda: model.run(arrays, outputs), lambda: list(outputs.values()))


def given(form: Form) -> list[np.ndarray]:
    """Run a form; return its outputs in float64."""
    form.run()
    return [np.array(output, np.float64) for output in form.output()]


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table with a row for each network, and the mean of the ratios."""
    ours, peer = ENGINES
    names = list(next(iter(found.values())))
    ratios = [each[ours] / each[peer] for each in found.values()]
    rows = [
        (name, *(f"{each[engine]:.1e}" for engine in names), f"{ratio:.2f}")
        for (name, each), ratio in zip(found.items(), ratios, strict=True)
    ]
    blank = [NOTHING] * len(names)
    rows.append(("geometric mean", *blank, f"{statistics.geometric_mean(ratios):.2f}"))
    rows.append(("largest", *blank, f"{max(ratios):.2f}"))
    return tabulate(rows, ("network", *names, f"{ours} ÷ {peer}"), disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
