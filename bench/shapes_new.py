"""Measure the cost of new shapes: algorithm selection, and the plan of a second size of a known layer.

Every selection is of another problem. The solvers' caches of tiles are cleared at the start of a list ("list"), or
before every selection ("alone"). Another size of a known layer finds its kernels on disk; it is measured once, in its
own process, because it happens once in a program.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import cpuconv
from baselib.interpreter import python
from bench import options, shapes
from bench.results import geomean
from bench.shapes.drawn import draw
from cpuconv.conv import session
from cpuconv.conv.choice import auto_settings, select, substitutes, tuned
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.recipe import assemble
from cpuconv.kernels.products import tiling
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE
from cpuconv.solvers.shared import blocked, transformed
from cpuconv.solvers.shared.lanes import lanewise

DRAWN, SEED = 200, 31
LAYERS = (  # input and output channels, kernel size, three plane sizes
    (64, 128, 3, (56, 60, 50)),
    (64, 64, 3, (56, 50, 62)),
    (256, 64, 1, (56, 44, 60)),
    (3, 64, 7, (224, 200, 240)),
    (48, 64, 5, (35, 41, 30)),
)
ROUNDS = 5  # rounds of selections; each problem's time is the median
RUNS = 9  # warm calls, whose median is subtracted from the first call's time


def lists() -> dict[str, list[ConvProblem]]:
    """Return the problems by list, NCHW in and out."""
    drawn = [replace(each, in_layout="NCHW", out_layout="NCHW") for each in draw(DRAWN, SEED)]
    return {"canonical": [line.problem for line in shapes.load()], "drawn": list(dict.fromkeys(drawn))}


def forget() -> None:
    """Clear the caches of solvers, selections and store queries."""
    solvers = [sys.modules[solver.module] for solver in TABLE]
    for module in (*solvers, blocked, lanewise, tiling, transformed):
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
                value.cache_clear()
    session.current.forget_choices()


def choices(auto: bool) -> dict[str, dict[str, float]]:
    """Time selections in microseconds: geometric mean and worst, by list and by cached state."""
    limits = Limits()

    def choose(problem: ConvProblem) -> None:
        if auto:
            problem = auto_settings.resolve_layouts(problem, "auto", "auto", limits)
        select.choose(problem, "heuristic", limits)

    found = {}
    for name, problems in lists().items():
        together: list[list[float]] = []
        alone: list[list[float]] = []
        for _ in range(ROUNDS):
            forget()
            together.append([_seconds(choose, replace(problem)) for problem in problems])
            alone.append([])
            for problem in problems:
                forget()
                tuned.best(problem, Limits(workspace=0))  # opens the tiers of wisdom
                alone[-1].append(_seconds(choose, replace(problem)))
        found[name] = _summary(together)
        found[f"{name}, alone"] = _summary(alone)
    return found


def sizes() -> dict[str, dict[str, float]]:
    """Time a second size of each layer by `conv2d`, less its run, and the parts for a third size, in milliseconds."""
    found = {}
    for c, k, kernel, (first, second, third) in LAYERS:
        weight = np.ones((k, c, kernel, kernel), np.float32)
        options: dict[str, Any] = {"padding": kernel // 2, "threads": 1, "strategy": "heuristic"}

        def call(size: int, weight: np.ndarray = weight, options: dict[str, Any] = options) -> float:
            x = np.ones((1, weight.shape[1], size, size), np.float32)
            return _seconds(lambda: cpuconv.conv2d(x, weight, **options))

        call(first)
        parts = {"in all": call(second) - statistics.median(call(second) for _ in range(RUNS))}
        parts |= _parts((1, c, third, third), weight, options["padding"])
        found[f"{c}→{k} {kernel}x{kernel}"] = {name: 1e3 * seconds for name, seconds in parts.items()}
    return found


def _parts(shape: tuple[int, ...], weight: np.ndarray, padding: int) -> dict[str, float]:
    parts = {}
    start = time.perf_counter()
    n, c, h, w = shape
    k, _, r, s = weight.shape
    problem = ConvProblem(n, c, h, w, k, r, s, pads=(padding,) * 4, threads=1)
    choice = select.choose(problem, "heuristic", Limits())
    forms = session.current.weights.forms(session.current.fingerprint(weight))
    candidate = substitutes.with_packed_weights(problem, Limits(), choice, forms).candidate
    parts["choice"] = time.perf_counter() - start
    form = candidate.packing(problem)
    parts["packing"] = 0.0 if form in forms else _seconds(lambda: form.pack(weight))
    start = time.perf_counter()
    recipe = assemble(problem, candidate)
    parts["steps"] = time.perf_counter() - start
    parts["kernels"] = _seconds(lambda: [step.compile() for step in recipe.steps])
    return parts


def first() -> float:
    """Time the first selection of a process after all imports, in milliseconds."""
    problem = ConvProblem(1, 64, 56, 56, 128, 3, 3, pads=(1, 1, 1, 1))
    return 1e3 * _seconds(lambda: select.choose(problem, "cached", Limits()))


def _seconds(call: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def _summary(rounds: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return µs over the problems, of each the median over the rounds."""
    times = [1e6 * statistics.median(each) for each in zip(*rounds, strict=True)]
    return {"geomean": geomean(times), "worst": max(times), "median": statistics.median(times)}


_PARTS = {"first": first, "sizes": sizes}


def _apart(part: str) -> Any:
    """Run a part in its own process and return its result."""
    command = python("-m", "bench.shapes_new", "--part", part)
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the figures."""
    p = options.parser("shapes_new", __doc__, "--json")
    p.add_argument("--part", choices=_PARTS, help="measure one part in this process, and print JSON")
    args = p.parse_args(argv)
    if args.part:
        print(json.dumps(_PARTS[args.part]()))
        return 0
    _apart("sizes")  # compiles its kernels to disk
    found: dict[str, Any] = {"first choice of a process, ms": _apart("first"), "another size, ms": _apart("sizes")}
    found |= {f"choice, {layout}, µs": choices(layout == "auto") for layout in ("NCHW", "auto")}
    print(f"first choice of a process: {found['first choice of a process, ms']:.1f} ms\n")
    for title, table in found.items():
        if isinstance(table, dict):
            print(title)
            for name, figures in table.items():
                print(f"  {name:34}", *(f"{what} {value:.3g}" for what, value in figures.items()), sep="  ")
    options.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
