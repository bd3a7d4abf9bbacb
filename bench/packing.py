"""Compare packing weights with copying as many bytes: `python -m bench.packing --help`."""

from __future__ import annotations

import argparse
import functools
import importlib.resources
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tabulate import tabulate

import cpuconv
from bench import options, shapes
from bench.results import geomean
from cpuconv.conv import session
from cpuconv.isa import current
from cpuconv.kernels.emit.intrinsics import copy_vector
from cpuconv.kernels.packing.pack import PackTile
from cpuconv.kernels.packing.packing import Packing
from cpuconv.memory.aligned import aligned
from cpuconv.network.problems.original import original_problems
from cpuconv.problem.problem import ConvProblem
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
    found = list(figures(shapes.load(pattern=args.lines), args.threads))
    rows = [(f.line, f.solver, f.read / 1e6, f.written / 1e6, f.pack, f.copy, f.ratio) for f in found]
    heads = "line", "solver", "read MB", "written MB", "pack µs", "copy µs", "ratio"
    print(tabulate(rows, heads, floatfmt=("", "", ".3f", ".3f", ".0f", ".0f", ".2f")))
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
    plans = [] if args.lines else [plans_of(model, args.threads) for model in MODELS]
    for each in plans:
        print("{model}: {count} plans in {ms:.0f} ms; packing alone, {packing_ms:.0f} ms".format(**each))
    content = {"threads": args.threads, "forms": list(map(asdict, found)), "plans": plans}
    options.write_json(args.json, content)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("packing", __doc__, "--lines", "--json")  # models only without --lines
    p.add_argument("--threads", type=int, default=1, help="threads of packing and of copying (1)")
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


def plans_of(model: str, threads: int) -> dict[str, Any]:
    """Time all plans of a light model of the package onnx, selected by the cost model, with compiled kernels and empty
    caches; and packing alone."""
    path = importlib.resources.files("onnx") / f"backend/test/data/light/light_{model}.onnx"
    entries = original_problems(str(path), threads=threads)
    problems = [e.problem for e in entries for _ in range(e.count)]
    layers = [(problem, random_weight(problem, seed)) for seed, problem in enumerate(problems)]
    totals, packing = [], []
    for _ in range(1 + PLAN_ROUNDS):  # the first compiles
        cpuconv.clear_cache()  # also of packed weights
        session.current.forget_choices()
        start = time.perf_counter()
        plans = [plan_of(problem, weight) for problem, weight in layers]
        totals.append(1e3 * (time.perf_counter() - start))
        forms = [p.candidate.solver.packing(p.problem, p.candidate.params, current()) for p in plans]
        del plans
        start = time.perf_counter()
        kept = [form.pack(weight, threads) for form, (_, weight) in zip(forms, layers, strict=True)]
        packing.append(1e3 * (time.perf_counter() - start))
        del kept
    ms, packing_ms = (statistics.median(times[1:]) for times in (totals, packing))
    return {"model": model, "count": len(layers), "ms": ms, "packing_ms": packing_ms}


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
