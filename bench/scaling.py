"""Predict how networks scale to machines with more cores than this one: `python -m bench.scaling --help`.

Each network is compiled for n threads. One thread computes every part of every kernel call alone, so its time is
measured, and the distribution of parts to n cores by work stealing is simulated. Cores of a machine may differ, as
performance cores (P) and efficiency cores (E, half as fast here) do. Not simulated: shared caches, memory bandwidth,
and clocks that sink with busy cores. First, the prediction for this machine's cores is compared with its measured time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from tabulate import tabulate

import cpuconv
from bench import options
from bench.networks.problem import NetworkProblem, asked
from bench.results import geomean
from cpuconv.kernels.calls.timed import Stopwatch
from cpuconv.runtime import thread_pool, threads

E_SPEED = 0.5  # of a core of kind E; that of P is 1
JOIN_SECONDS, JOIN_SECONDS_EACH = 0.4e-6, 0.35e-6  # of a row, and of each worker: 1.1 µs on 2 and 6 µs on 16 threads
RUNS = 5
MACHINES = "4,8,16,64,6+8,8+16"
Row = np.ndarray
"""Seconds of each part of a kernel call; one part if the call is not shared."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write JSON."""
    args = parser().parse_args(argv)
    here, each = threads.maximum_threads(), args.join * 1e-6
    found = {}
    for name in asked(args.folder, args.networks, args.set):
        path = args.folder / f"{name}.onnx"
        feed = NetworkProblem(path, path.with_suffix(".npz")).feed()
        measured = {count: run_seconds(path, feed, count) for count in dict.fromkeys((1, here))}
        rows = {count: part_seconds(path, feed, count) for count in dict.fromkeys((here, *map(len, args.machines)))}
        found[name] = {
            "measured": measured,
            "predicted": {here: predicted(rows[here], [1.0] * here, each)},
            "machines": {
                label(speeds): {
                    "efficiency": measured[1] / sum(speeds) / predicted(rows[len(speeds)], speeds, each),
                    "by_speed": measured[1] / sum(speeds) / predicted(rows[len(speeds)], speeds, each, True),
                }
                for speeds in args.machines
            },
        }
    options.write_json(args.json, found)
    print(table(found, here))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("scaling", __doc__, "folder", "--networks", "--set", "--json")
    p.add_argument(
        "--machines",
        type=machines,
        default=MACHINES,
        help="cores, as 8, or P and E cores, as 6+8 (%(default)s)",
    )
    p.add_argument(
        "--join",
        type=float,
        default=1e6 * JOIN_SECONDS_EACH,
        help="µs that each thread adds to a join (%(default)g)",
    )
    return p


def machines(text: str) -> list[list[float]]:
    """Parse machines: the speeds of their cores."""
    found = []
    for word in text.split(","):
        if not (fit := re.fullmatch(r"([1-9]\d*)(?:\+([1-9]\d*))?", word)):
            raise argparse.ArgumentTypeError(f"must be numbers of cores, as 8 or 6+8, not {word!r}")
        found.append([1.0] * int(fit[1]) + [E_SPEED] * int(fit[2] or 0))
    return found


def label(speeds: Sequence[float]) -> str:
    """Name a machine by its cores."""
    fast = sum(speed == 1 for speed in speeds)
    return f"{fast}" if fast == len(speeds) else f"{fast} P + {len(speeds) - fast} E"


def run_seconds(path: Path | str, feed: dict[str, np.ndarray], count: int) -> float:
    """Measure a run on `count` threads of this machine, in seconds."""
    return cpuconv.compile(path, threads=count).profile(feed, 4 * RUNS).seconds


def part_seconds(path: Path | str, feed: dict[str, np.ndarray], count: int) -> list[Row]:
    """Measure each part of a network that is compiled for `count` threads, on one thread."""
    with pretended(count):
        model = cpuconv.compile(path, threads=count)
        made, given = model._programs.fitting([feed[name] for name in model._definition.inputs])
        executable, watch = made.executable, Stopwatch(count)
        context = executable.context_in_place(watch=watch)
        outputs = list(executable.output_arrays.new().values())  # kept alive: the context has their addresses
        context.point(given, outputs)
        runs = []
        for _ in range(1 + RUNS):
            hosts = context.watched()
            runs.append([*watch.part_seconds(), *(np.array([end - start]) for _, start, end in hosts)])
    return [np.median(each, axis=0) for each in zip(*runs[1:], strict=True)]


@contextlib.contextmanager
def pretended(count: int) -> Iterator[None]:
    """Let programs be compiled for `count` threads, and their parts be computed by the calling thread alone."""
    board = thread_pool.new_board(0)
    alone: Any = SimpleNamespace(address=board.ctypes.data, guard=contextlib.nullcontext(), parallel_for=0)
    threads.maximum_threads.cache_clear()
    with (
        patch.dict(os.environ, NUMBA_NUM_THREADS=str(count)),
        patch.object(threads, "allowed_cores", lambda: count),
        patch.object(threads, "_pool", alone),
    ):
        yield
    threads.maximum_threads.cache_clear()


def predicted(
    rows: Sequence[Row], speeds: Sequence[float], each: float = JOIN_SECONDS_EACH, by_speed: bool = False
) -> float:
    """Predict seconds of a run on cores of these speeds.

    `each`: seconds that each of them adds to a join. `by_speed`: ranges of parts are in proportion to speeds.
    """
    join = JOIN_SECONDS + each * len(speeds)
    return sum(
        float(row[0]) if len(row) == 1 else join + shared_seconds(row, speeds, by_speed=by_speed) for row in rows
    )


def shared_seconds(row: Row, speeds: Sequence[float], by_speed: bool = False) -> float:
    """Simulate `runtime.work_stealing`: own parts from the front, then parts of others from the back.

    Returns
    -------
    float
        Seconds until the last core is done.
    """
    parts, workers = len(row), len(speeds)
    shares = np.cumsum([0.0, *speeds]) / sum(speeds) if by_speed else np.arange(workers + 1) / workers
    cuts = np.floor(shares * parts + 1e-9).astype(int)
    left = [list(range(first, last)) for first, last in zip(cuts, cuts[1:], strict=False)]
    free = [0.0] * workers
    while any(left):
        worker = free.index(min(free))
        turns = ((worker + turn) % workers for turn in range(workers))
        victim = next(at for at in turns if left[at])
        part = left[victim].pop(0 if victim == worker else -1)
        free[worker] += float(row[part]) / speeds[worker]
    return max(free)


def table(found: dict[str, dict[str, Any]], here: int) -> str:
    """Return efficiencies as a Markdown table, with a row for each network."""
    rows = [
        [name, f"{one['predicted'][here] / one['measured'][here]:.2f}", *map(_cell, one["machines"].values())]
        for name, one in found.items()
    ]
    columns = zip(*(one["machines"].values() for one in found.values()), strict=True)
    means = [_cell({key: geomean(cell[key] for cell in column) for key in column[0]}) for column in columns]
    rows.append(["geometric mean", "", *means])
    names = next(iter(found.values()))["machines"]
    heads = ["network", f"predicted ÷ measured, {here} threads", *names]
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def _cell(figures: dict[str, float]) -> str:
    plain, by_speed = f"{figures['efficiency']:.0%}", f"{figures['by_speed']:.0%}"
    return plain if plain == by_speed else f"{plain} ({by_speed})"


if __name__ == "__main__":
    sys.exit(main())
