"""Make the networks' ONNX files: `python -m bench.networks --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from tabulate import tabulate

from bench.networks import Network, networks
from bench.networks.model import resize, save
from bench.networks.problem import keep
from bench.options import OPTIONS, words


def main(argv: Sequence[str] | None = None) -> int:
    """Make the files; return 1 if one of those named could not be made."""
    args = parser().parse_args(argv)
    known = networks(args.set)
    console = Console(stderr=True, highlight=False)
    if args.folder is None:
        print(table(known.values()))
        return 0
    asked = words(args.only, known, "--only")
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, name in enumerate(asked or known, 1):
        label = f"{number}/{len(asked or known)} {name}"
        path, network = args.folder / f"{name}.onnx", known[name]
        if path.is_file() and not args.again:
            console.print(f"{label}: there")
        elif missing := network.missing():
            console.print(f"{label}: [red]not made[/], it needs: {missing}")
            failed += name in asked
        else:
            start = time.perf_counter()
            model = network.make(network.inputs)
            if not network.fixed:
                resize(model, network.inputs)
            save(model, path)
            keep(network, path)
            console.print(f"{label}: {path.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - start:.1f} s")
    return int(failed > 0)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.networks", description=__doc__)
    p.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="output folder; without it, print a list")
    p.add_argument("--set", **OPTIONS["--set"])
    p.add_argument("--only", default="", metavar="NAMES", help="comma-separated subset of the networks")
    p.add_argument("--again", action="store_true", help="also rewrite existing files")
    return p


def table(known: Iterable[Network]) -> str:
    """Table with a row per network: its inputs for one image, and whether it can be made."""
    rows = [
        (each.name, ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in each.inputs.items()), state)
        for each in known
        for state in (each.missing() or "can be made",)
    ]
    return tabulate(rows, ("network", "inputs", "state"))


if __name__ == "__main__":
    sys.exit(main())
