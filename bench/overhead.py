"""What a call costs beside the work: `python -m bench.overhead --help`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/overhead.py` works too

import numpy as np
from tabulate import tabulate

SHAPE = (1, 1, 8, 8)


def main(argv: Sequence[str] | None = None) -> int:
    """Print µs a call, fastest and median round."""
    args = parser().parse_args(argv)
    calls = subjects(args.threads)
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # compile, pack, warm
        microseconds(call, args.calls)
    for _ in range(args.rounds):
        for name, call in calls.items():
            rounds[name].append(microseconds(call, args.calls))
    figures = {name: {"best": min(times), "median": statistics.median(times)} for name, times in rounds.items()}
    if args.json:
        print(json.dumps({"unit": "us", "shape": SHAPE, "threads": args.threads, "calls": figures}, indent=1))
    else:
        rows = [(name, f"{figure['best']:.2f}", f"{figure['median']:.2f}") for name, figure in figures.items()]
        print(tabulate(rows, ("call", "best µs", "median µs"), disable_numparse=True, stralign="right"))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.overhead", description=__doc__)
    p.add_argument("--calls", type=int, default=20_000, help="calls a round (20000)")
    p.add_argument("--rounds", type=int, default=7, help="rounds (7)")
    p.add_argument("--threads", type=int, default=1, help="threads of the plan (1)")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


def subjects(threads: int) -> dict[str, Callable[[], object]]:
    """What is timed: a 3x3 convolution, padding 1, of one channel of 8x8."""
    import cpuconv

    rng = np.random.default_rng(0)
    x = rng.standard_normal(SHAPE, dtype=np.float32)
    w = rng.standard_normal((1, 1, 3, 3), dtype=np.float32)
    w.setflags(write=False)  # packed once, then remembered
    out = np.empty(SHAPE, np.float32)
    plan = cpuconv.plan(SHAPE, w, padding=1, threads=threads)

    def empty(x: np.ndarray, *, out: np.ndarray) -> None:
        return None

    return {
        "empty Python call": lambda: empty(x, out=out),
        "plan(x, out=out)": lambda: plan(x, out=out),
        "conv2d(x, w), read-only w": lambda: cpuconv.conv2d(x, w, padding=1, threads=threads),
    }


def microseconds(call: Callable[[], object], times: int) -> float:
    """µs a call over so many calls, the loop and the lambda around it included."""
    clock = time.perf_counter
    repeats = range(times)
    start = clock()
    for _ in repeats:
        call()
    return (clock() - start) / times * 1e6


if __name__ == "__main__":
    sys.exit(main())
