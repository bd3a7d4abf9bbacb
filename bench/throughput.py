"""Measure images per second with several callers: `python -m bench.throughput --help`.

The same cores are used in two ways: one caller whose model runs on all cores, and one Python thread per core, each
running a model on one thread. Both are timed in turn. Callers share one model with one copy of the packed weights; each
run has its own arena. A run holds the interpreter's lock while it checks its arrays, and releases it in kernels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
from tabulate import tabulate

import cpuconv
from bench import options
from bench.networks.problem import NetworkProblem, asked, problems
from bench.settings import machine_name
from cpuconv.runtime.threads import maximum_threads


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row per network."""
    args = parser().parse_args(argv)
    rows = []
    with problems(args.folder, asked(args.folder, args.networks, args.set), 1) as found:
        for name, problem in found.items():
            rows.append(measured(name, problem, args.callers, args.rounds, args.seconds))
            print(f"{name}: {rows[-1]['ratio']:.2f}", file=sys.stderr, flush=True)
    options.write_json(args.json, {"cpu": machine_name(), "networks": rows})
    heads = ("network", f"1 caller of {args.callers} threads", f"{args.callers} callers of 1 thread", "ratio")
    cells = [(row["network"], f"{row['together']:.1f}", f"{row['apart']:.1f}", f"{row['ratio']:.2f}") for row in rows]
    print("images a second, medians of rounds", tabulate(cells, heads, disable_numparse=True), sep="\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser(
        "throughput", __doc__, "folder", "--networks", "--set", "--rounds", "--seconds", "--json", rounds=7
    )
    most = maximum_threads()
    p.add_argument("--callers", type=options.positive, default=most, help="callers, and threads of one (%(default)s)")
    return p


def measured(name: str, problem: NetworkProblem, callers: int, rounds: int, seconds: float) -> dict[str, float | str]:
    """Return images per second of one network in both ways, and the ratio of separate callers to one caller."""
    feed = problem.feed()
    models = {count: cpuconv.compile(problem.path, threads=count) for count in (1, callers)}
    ways = {"together": (models[callers], 1), "apart": (models[1], callers)}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-1, rounds):  # the first is warm-up: kernels, pages and caches
        for way, (model, count) in ways.items():
            rate = images_a_second(model, feed, count, seconds)
            if turn >= 0:
                found[way].append(rate)
    ratio = statistics.median(b / a for a, b in zip(found["together"], found["apart"], strict=True))
    return {"network": name, **{way: statistics.median(rates) for way, rates in found.items()}, "ratio": ratio}


def images_a_second(model: cpuconv.Model, feed: dict[str, np.ndarray], callers: int, seconds: float) -> float:
    """Return images per second of `callers` Python threads that run one model for `seconds`."""
    counts = [0] * callers
    ready = threading.Barrier(callers + 1)
    end = 0.0

    def call(caller: int) -> None:
        outputs = model.run(feed)
        ready.wait()
        while time.perf_counter() < end:
            model.run(feed, outputs)
            counts[caller] += 1

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    begun = time.perf_counter()
    end = begun + 3600.0  # no thread stops before all have begun
    ready.wait()
    begun = time.perf_counter()
    end = begun + seconds
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


if __name__ == "__main__":
    sys.exit(main())
