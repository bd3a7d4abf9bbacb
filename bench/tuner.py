"""Measure the tuner against its targets: `python -m bench.tuner --help`.

All stores are temporary; compiled kernels are read from and written to the usual cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/tuner.py` works too

from rich.console import Console
from rich.progress import Progress as Bar

from autotune.machine.device import fingerprint
from autotune.tuning.effort import EFFORTS
from autotune.workload import Problem
from bench.shapes.drawn import draw
from bench.tuning.choices import heuristic, regret, repeat, seconds
from bench.tuning.figures import Figure, table
from bench.tuning.kills import kills
from bench.tuning.lookups import large, lookup
from bench.tuning.mutations import fuzz
from bench.tuning.session import Session

PARTS: dict[str, Callable[[Session], Iterator[Figure]]] = {
    "regret": regret,
    "heuristic": heuristic,
    "repeat": repeat,
    "seconds": seconds,
    "lookup": lookup,
    "open": large,
    "kills": kills,
    "fuzz": fuzz,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; return 1 if one misses its target."""
    options = parser().parse_args(argv)
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-tuner-") as folder,
        Bar(console=Console(stderr=True), transient=True) as bar,
    ):
        drawn = draw(options.shapes, options.seed, options.threads)
        problems = [Problem(p.key, p.shape_key, 1, float(p.flops), "drawn", p.threads) for p in drawn]
        session = Session(options, problems, Path(folder), bar)
        with contextlib.suppress(KeyboardInterrupt):  # print the figures so far
            for part in options.parts:
                figures.extend(PARTS[part](session))
    if options.json:
        records = [asdict(figure) | {"met": figure.met} for figure in figures]
        print(json.dumps({"device": fingerprint().key, "seed": options.seed, "figures": records}, indent=1))
    else:
        print(f"{options.shapes} shapes, seed {options.seed}, {options.threads} threads\n\n{table(figures)}")
    return int(any(figure.met is False for figure in figures))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.tuner", description=__doc__.splitlines()[0])
    p.add_argument("--parts", metavar="PART,PART", type=_some(PARTS), default=tuple(PARTS), help=f"of {_all(PARTS)}")
    p.add_argument("--shapes", type=int, default=40, help="shapes drawn at random (40)")
    p.add_argument("--seed", type=int, default=4, help="random seed (4)")
    p.add_argument("--threads", type=int, default=1, help="threads of the shapes (1)")
    p.add_argument(
        "--efforts", type=_some(EFFORTS), default=("quick", "normal"), help="efforts to evaluate (quick,normal)"
    )
    p.add_argument("--warmups", type=int, default=3, help="warmups per effort, with an empty store (3)")
    p.add_argument("--rounds", type=int, default=24, help="rounds when winners are timed again (24) …")
    p.add_argument("--preparations", type=int, default=5, help="… on data that is prepared so many times (5) …")
    p.add_argument("--most", type=int, default=15, help="… or so many, until ratios are known to within 1%% (15)")
    p.add_argument("--shape-limit", type=float, help="seconds for a shape of the exhaustive warmup (no limit)")
    p.add_argument("--calls", type=int, default=1000, help="look-ups a sample (1000)")
    p.add_argument("--rows", type=int, default=100_000, help="of the large store (100000)")
    p.add_argument("--kills", type=int, default=50, help="warmups to kill (50)")
    p.add_argument("--mutations", type=int, default=10_000, help="of a file of wisdom, and of a store (10000)")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


def _all(names: Iterable[str]) -> str:
    return ", ".join(names)


def _some(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated names, which orders them as in `known`."""

    def read(text: str) -> tuple[str, ...]:
        asked = text.split(",")
        if not set(asked) <= set(known):
            raise argparse.ArgumentTypeError(f"must be of {_all(known)}, not {text!r}")
        return tuple(name for name in known if name in asked)

    return read


if __name__ == "__main__":
    sys.exit(main())
