"""Compare the bfloat16 errors of networks in cpuconv and OpenVINO: `python -m bench.errors --help`.

A figure is the relative root mean square of the difference from cpuconv's float32, over the outputs of several random
inputs. In some networks the error varies much between inputs, so the figure is over all inputs together.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tabulate import tabulate

from bench import options
from bench.networks import Network
from bench.networks.problem import asked
from bench.peers.base import Form, NetworkPeer, missing
from bench.peers.cpuconv_peer import CpuconvPeer
from bench.peers.openvino_peer import OpenVinoPeer
from bench.report import NOTHING

ENGINES: Mapping[str, NetworkPeer] = {
    "cpuconv": CpuconvPeer(strategy="heuristic", precision="bfloat16"),
    "OpenVINO": OpenVinoPeer("bf16"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each network; return 1 if OpenVINO is not installed."""
    args = parser().parse_args(argv)
    for reason in filter(None, (missing(engine.package) for engine in ENGINES.values())):
        print(reason, file=sys.stderr)
        return 1
    found = {
        name: errors(network, args.folder / f"{name}.onnx", args.feeds, args.threads)
        for name, network in asked(args.folder, args.networks).items()
    }
    print(table(found))
    options.write_json(args.json, found)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("errors", __doc__, "folder", "--networks", "--json")
    p.add_argument("--feeds", type=options.positive, default=8, help="random inputs of each network (%(default)s)")
    p.add_argument("--threads", type=options.positive, default=1, help="threads of each engine (%(default)s)")
    return p


def errors(network: Network, path: Path, feeds: int, threads: int) -> dict[str, float]:
    """Return relative RMS errors of a network by engine, over the outputs of inputs 1 to `feeds`."""
    arrays = network.feed(network.inputs)
    exact = CpuconvPeer(strategy="heuristic").network(path, arrays, threads)[0]
    forms = {name: engine.network(path, arrays, threads)[0] for name, engine in ENGINES.items()}
    squares = dict.fromkeys(forms, 0.0)
    total = 0.0
    for seed in range(1, feeds + 1):
        for name, array in network.feed(network.inputs, seed).items():
            np.copyto(arrays[name], array)  # engines read these very arrays
        right = given(exact)
        total += sum(float(np.square(each).sum()) for each in right)
        for name, form in forms.items():
            squares[name] += sum(
                float(np.square(mine - each).sum()) for mine, each in zip(given(form), right, strict=True)
            )
    return {name: math.sqrt(square / total) for name, square in squares.items()}


def given(form: Form) -> list[np.ndarray]:
    """Run a form; return its outputs in float64."""
    form.run()
    return [np.array(output, np.float64) for output in form.output()]


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table with a row for each network, and the mean of the ratios."""
    ours, peer = ENGINES
    ratios = [each[ours] / each[peer] for each in found.values()]
    rows = [
        (name, *(f"{each[engine]:.1e}" for engine in ENGINES), f"{ratio:.2f}")
        for (name, each), ratio in zip(found.items(), ratios, strict=True)
    ]
    rows.append(("geometric mean", NOTHING, NOTHING, f"{statistics.geometric_mean(ratios):.2f}"))
    rows.append(("largest", NOTHING, NOTHING, f"{max(ratios):.2f}"))
    return tabulate(rows, ("network", *ENGINES, f"{ours} ÷ {peer}"), disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
