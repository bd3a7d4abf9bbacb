"""Compare operators other than convolutions with other engines, each as a network: `python -m bench.operators`.

The operators are recurrent layers of text recognisers, matrix multiplications at batch 1, the multiplications and
softmaxes of attention, and those of `bench.chains`. They are timed and checked as in `bench.models`. With --dynamic,
operators with weights run with dynamic quantisation, and are compared with cpuconv in float32, too.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from bench import options
from bench.chains import networks
from bench.models import notes, raced, settings, table
from bench.models import parser as models_parser
from bench.networks import Network
from bench.networks.model import save
from bench.networks.problem import NetworkProblem, keep, problems
from bench.networks.quantized import WEIGHTS, dynamic


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each number of threads; return 1 if nothing was measured."""
    p = options.parser("operators", __doc__, "--threads", "--peers", "--rounds", "--seconds", rounds=3, seconds=0.05)
    p.add_argument("names", nargs="*", default=["*"], metavar="PATTERN", help="patterns of names, as 'LSTM*' (all)")
    p.add_argument("--dynamic", choices=WEIGHTS, help="dynamic quantisation, with weights of int8 or uint8")
    p.set_defaults(peers="onnxruntime,openvino")
    args = p.parse_args(argv)
    chosen = {each.name: each for each in networks() if any(fnmatch(each.name, name) for name in args.names)}
    if not chosen:
        raise SystemExit("No operator has such a name.")
    words = ["--peers", args.peers, "--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    words += ["--precision", "int8" if args.dynamic else "float32"]
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
                data["precision"] = f"dynamic, {args.dynamic}" if args.dynamic else "float32"
                print(table(data), *notes(data), "", sep="\n", flush=True)
                if code:
                    break
    return code


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
