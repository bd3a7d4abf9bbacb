"""Measure the tuner against its targets: `python -m bench.tuner --help`.

All stores are temporary; compiled kernels are read from and written to the usual cache.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bar

from autotune.machine.device import fingerprint
from autotune.tuning.effort import EFFORTS
from autotune.workload import Problem
from bench import options
from bench.shapes.drawn import draw
from bench.tuning.choices import heuristic, regret, repeat, seconds
from bench.tuning.figures import Figure, table
from bench.tuning.lookups import large, lookup
from bench.tuning.session import Session

PARTS: dict[str, Callable[[Session], Iterator[Figure]]] = {
    "regret": regret,
    "heuristic": heuristic,
    "repeat": repeat,
    "seconds": seconds,
    "lookup": lookup,
    "open": large,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; return 1 if one misses its target."""
    args = parser().parse_args(argv)
    args.parts = options.words(args.parts, PARTS, "--parts")
    args.efforts = options.words(args.efforts, EFFORTS, "--efforts")
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-tuner-") as folder,
        Bar(console=Console(stderr=True), transient=True) as bar,
    ):
        drawn = draw(args.shapes, args.seed, args.threads)
        problems = [Problem(p.key, p.shape_key, 1, float(p.flops), "drawn", p.threads) for p in drawn]
        session = Session(args, problems, Path(folder), bar)
        with contextlib.suppress(KeyboardInterrupt):  # print the figures so far
            for part in args.parts:
                figures.extend(PARTS[part](session))
    print(f"{args.shapes} shapes, seed {args.seed}, {args.threads} threads\n\n{table(figures)}")
    records = [asdict(figure) | {"met": figure.met} for figure in figures]
    options.write_json(args.json, {"device": fingerprint().key, "seed": args.seed, "figures": records})
    return int(any(figure.met is False for figure in figures))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("tuner", __doc__, "--json")
    p.add_argument("--parts", metavar="PART,PART", default=",".join(PARTS), help="comma-separated (%(default)s)")
    p.add_argument("--shapes", type=int, default=40, help="shapes drawn at random (40)")
    p.add_argument("--seed", type=int, default=4, help="random seed (4)")
    p.add_argument("--threads", type=int, default=1, help="threads of the shapes (1)")
    p.add_argument("--efforts", default="quick,normal", help="efforts to evaluate (%(default)s)")
    p.add_argument("--warmups", type=int, default=3, help="warmups per effort, with an empty store (3)")
    p.add_argument("--rounds", type=int, default=24, help="rounds when winners are timed again (24) …")
    p.add_argument("--preparations", type=int, default=5, help="… on data that is prepared so many times (5) …")
    p.add_argument("--most", type=int, default=15, help="… or so many, until ratios are known to within 1%% (15)")
    p.add_argument("--shape-limit", type=float, help="seconds for a shape of the exhaustive warmup (no limit)")
    p.add_argument("--calls", type=int, default=1000, help="look-ups a sample (1000)")
    p.add_argument("--rows", type=int, default=100_000, help="of the large store (100000)")
    return p


if __name__ == "__main__":
    sys.exit(main())
