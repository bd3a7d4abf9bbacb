"""Judge networks with open sizes at random ones: `python tests/random_sizes.py`.

    python tests/random_sizes.py --count 200 --threads 2
    python tests/random_sizes.py --networks images,signals --first 7 --count 1
    python tests/random_sizes.py --folder DIR --count 20        networks that `python -m bench.networks DIR` made
    python tests/random_sizes.py --order --count 50

Results are ONNX Runtime's and those of a model that is compiled for that size alone, within a bound, and nothing around
the arrays is touched. The first two sizes are the smallest and the oddest. With --order, two models run the sizes in
opposite orders, and must give equal bits. Ends with code 1, and commands that try what failed alone. A process that is
stopped shows the command as the name of a function in its traceback.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections import Counter
from pathlib import Path

from support.guarded import named
from support.random_sizes import Judge, from_folder
from support.sized_networks import NETWORKS, SizedNetwork


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    if not faulthandler.is_enabled():  # as under pytest
        faulthandler.enable()
    asked = options.networks.split(",") if options.networks else []
    failed, judged = 0, []
    for network in from_folder(options.folder, asked) if options.folder else NETWORKS:
        if asked and network.name not in asked:
            continue
        start = time.monotonic()
        told = (_orders if options.order else _sizes)(network, options)
        judged.append(network.name)
        failed += told["wrong"]
        said = ", ".join(f"{count} {what}" for what, count in told.items())
        print(f"{network.name}: {said} in {time.monotonic() - start:.0f} s", flush=True)
    if not judged or {*asked} > {*judged}:
        raise SystemExit(f"There are no networks {', '.join(sorted({*asked} - {*judged}))}.")
    return 1 if failed else 0


def _sizes(network: SizedNetwork, options: argparse.Namespace) -> Counter[str]:
    told: Counter[str] = Counter()
    judge, start = Judge(network, options.seed, options.threads), time.monotonic()
    for number in range(options.first, options.first + options.count):
        if time.monotonic() - start > options.seconds:
            break
        command = _command(network, options, number)
        try:
            told[named(command, lambda: judge.judge(number, not options.no_fresh))] += 1  # noqa: B023
        except Exception as error:
            told["wrong"] += 1
            print(f"{command}\n  {type(error).__name__}: {str(error).partition(chr(10))[0][:400]}", flush=True)
    return told


def _orders(network: SizedNetwork, options: argparse.Namespace) -> Counter[str]:
    numbers = range(options.first, options.first + options.count)
    judge = Judge(network, options.seed, options.threads)
    other = judge.reordered(numbers)
    for number in other:
        shapes = ", ".join("x".join(map(str, shape)) for shape in judge.shapes(number).values())
        print(f"{network.name}: number {number}, {shapes}: other bits in the other order", flush=True)
    return Counter({"of equal bits": len(numbers) - len(other), "wrong": len(other)})


def _command(network: SizedNetwork, options: argparse.Namespace, number: int) -> str:
    of = f" --folder {options.folder}" if options.folder else ""
    return (
        f"python tests/random_sizes.py{of} --networks '{network.name}' --seed {options.seed}"
        f" --threads {options.threads} --first {number} --count 1"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--networks", default="", metavar="NAME,NAME", help="networks (all)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="whole networks, in place of small ones")
    parser.add_argument("--count", type=int, default=20, help="sizes of each network (20)")
    parser.add_argument("--first", type=int, default=0, help="number of the first size (0)")
    parser.add_argument("--seed", type=int, default=1, help="seed of sizes and elements (1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of a run (1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more sizes of a network after so many")
    parser.add_argument("--no-fresh", action="store_true", help="leave out the model that is compiled for each size")
    parser.add_argument("--order", action="store_true", help="compare bits of two orders instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
