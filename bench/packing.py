"""Compare packing weights with copying as many bytes: `python -m bench.packing --help`."""

from __future__ import annotations

import argparse
import functools
import importlib.resources
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/packing.py` works too

import numpy as np
from tabulate import tabulate

import cpuconv
from autotune.files import write_whole
from bench import shapes
from bench.results import geomean
from cpuconv.conv import session
from cpuconv.isa import current
from cpuconv.kernels.emit.intrinsics import copy_vector
from cpuconv.kernels.packing.pack import PackTile
from cpuconv.kernels.packing.packing import Packing
from cpuconv.memory.aligned import aligned
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading import sources
from cpuconv.runtime import Program, kernel
from cpuconv.solvers import TABLE, why_not

SECONDS = 0.02  # time for the runs of packing a form, and for those of copying
MIN_RUNS, MAX_RUNS = 5, 100  # bounds of the runs of either
LARGE = 1 << 20  # bytes read and written; with fewer, the overhead of a call is visible
MODELS = ("resnet50", "vgg19")
PLAN_ROUNDS = 3


@dataclass(frozen=True)
class Figure:
    """Packing for a solver's first candidate on one line.

    Times are medians in µs; packing and the copy run in turn, and both write to fresh memory.
    """

    line: str
    solver: str
    read: int
    written: int
    pack: float
    copy: float

    @property
    def ratio(self) -> float:
        """Time of packing over the time of the copy."""
        return self.pack / self.copy


@dataclass(frozen=True)
class Plans:
    """All plans of a model with compiled kernels and empty caches: total seconds, and seconds of packing alone."""

    model: str
    count: int
    seconds: float
    packing: float


@kernel("x y vectors times rest")
def spread(tile, worker, before, part, parts, args):
    """Write each of the `vectors` vectors at x `times` times to y, one after another; then the first `rest` of them
    again.
    """
    size, times = 4 * tile.lanes, args.times
    for i in range(args.vectors * part // parts, args.vectors * (part + 1) // parts):
        for j in range(i * times, (i + 1) * times):
            copy_vector(tile, args.x + i * size, args.y + j * size)
    y = args.y + args.vectors * times * size
    for i in range(args.rest * part // parts, args.rest * (part + 1) // parts):
        copy_vector(tile, args.x + i * size, y + i * size)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row per line and solver, a summary, and the plans of models."""
    args = parser().parse_args(argv)
    found = list(figures(shapes.load(pattern=args.pattern), args.threads))
    rows = [
        (
            f.line,
            f.solver,
            f"{f.read / 1e6:.3f}",
            f"{f.written / 1e6:.3f}",
            f"{f.pack:.0f}",
            f"{f.copy:.0f}",
            f"{f.ratio:.2f}",
        )
        for f in found
    ]
    print(
        tabulate(
            rows, ("line", "solver", "read MB", "written MB", "pack µs", "copy µs", "ratio"), disable_numparse=True
        )
    )
    for name, some in (("all", found), ("1 MB and more", [f for f in found if f.read + f.written >= LARGE])):
        if some:
            worst = max(some, key=lambda f: f.ratio)
            mean = geomean(f.ratio for f in some)
            print(
                f"{name}: {len(some)} forms, geomean {mean:.2f}, worst {worst.ratio:.2f} ({worst.line}, {worst.solver})"
            )
    if small := [f for f in found if f.read + f.written < LARGE]:
        slowest = max(small, key=lambda f: f.pack)
        print(f"less: {len(small)} forms, at most {slowest.pack:.0f} µs ({slowest.line}, {slowest.solver})")
    plans = [] if args.pattern else [plans_of(model, args.threads) for model in MODELS]
    for p in plans:
        print(f"{p.model}: {p.count} plans in {p.seconds * 1e3:.0f} ms; packing alone, {p.packing * 1e3:.0f} ms")
    if args.json:
        content = {"threads": args.threads, "forms": list(map(asdict, found)), "plans": list(map(asdict, plans))}
        write_whole({args.json: json.dumps(content, indent=1) + "\n"})
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.packing", description=__doc__)
    p.add_argument("--threads", type=int, default=1, help="threads of packing and of copying (1)")
    p.add_argument("--pattern", default="", help="only lines whose name matches this regular expression; no models")
    p.add_argument("--json", type=Path, help="write the figures to this file")
    return p


def figures(lines: Sequence[shapes.Line], threads: int) -> Iterator[Figure]:
    """Yield the figures of every line with every solver that runs it."""
    isa = current()
    for line in lines:
        weight = random_weight(line.problem)
        for solver in TABLE:
            if why_not(solver, line.problem, isa) is None:
                params = next(iter(solver.candidates(line.problem, isa)))
                form = solver.packing(line.problem, params, isa)
                pack, copy = in_turn(functools.partial(form.pack, weight, threads), copier(weight, form, threads))
                yield Figure(line.label, solver.name, weight.nbytes, form.size, pack, copy)


def random_weight(problem: ConvProblem, seed: int = 0) -> np.ndarray:
    """Make unit-normal weights of a problem."""
    return np.random.default_rng(seed).standard_normal(problem.weight_shape, np.float32)


def copier(weight: np.ndarray, form: Packing, threads: int) -> Callable[[], object]:
    """Return a function that reads the weights and writes as many bytes as packing, in order, to fresh memory."""
    lanes = current().lanes
    vectors, written = (-(-size // (4 * lanes)) for size in (weight.nbytes, form.size))
    x = aligned(vectors * lanes)
    x[:] = 1
    words = {"vectors": vectors, "times": written // vectors, "rest": written % vectors}
    entry = spread.entry(PackTile(lanes))

    def copy() -> np.ndarray:
        y = aligned(written * lanes)
        Program([(entry, spread.pack({**words, "x": x.ctypes.data, "y": y.ctypes.data}), True)], threads).run()
        return y

    return copy


def in_turn(*calls: Callable[[], object]) -> list[float]:
    """Return the median µs of each call; the calls run in turn."""
    clock = time.perf_counter
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    begun = clock()
    while len(times[0]) < MIN_RUNS or (len(times[0]) < MAX_RUNS and clock() - begun < SECONDS * len(calls)):
        for call, taken in zip(calls, times, strict=True):
            start = clock()
            call()
            taken.append((clock() - start) * 1e6)
    return [statistics.median(taken) for taken in times]


def plans_of(model: str, threads: int) -> Plans:
    """Time the plans of a light model of the package onnx, selected by the cost model alone."""
    path = importlib.resources.files("onnx") / f"backend/test/data/light/light_{model}.onnx"
    entries = sources.load(str(path), threads=threads)
    problems = [e.problem for e in entries for _ in range(e.count)]
    layers = [(problem, random_weight(problem, seed)) for seed, problem in enumerate(problems)]
    totals = []
    plans: list[cpuconv.Plan] = []
    for _ in range(1 + PLAN_ROUNDS):  # the first compiles
        plans.clear()
        cpuconv.clear_cache()  # also of packed weights
        session.current.forget_choices()
        start = time.perf_counter()
        plans = [plan_of(problem, weight) for problem, weight in layers]
        totals.append(time.perf_counter() - start)
    forms = [p.candidate.solver.packing(p.problem, p.candidate.params, current()) for p in plans]
    packing = []
    for _ in range(PLAN_ROUNDS):
        start = time.perf_counter()
        kept = [form.pack(weight, threads) for form, (_, weight) in zip(forms, layers, strict=True)]
        packing.append(time.perf_counter() - start)
        del kept
    return Plans(model, len(layers), statistics.median(totals[1:]), statistics.median(packing))


def plan_of(problem: ConvProblem, weight: np.ndarray) -> cpuconv.Plan:
    """Make a plan by the public call."""
    top, bottom, left, right = problem.pads
    padding = (top, bottom), (left, right)
    return cpuconv.plan(
        problem.in_shape, weight, None, problem.stride, padding, problem.dilation, problem.groups,
        threads=problem.threads, strategy="heuristic",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
