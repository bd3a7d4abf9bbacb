"""Measure the cost of new shapes: algorithm selection, and the plan of a second size of a known layer.

    python -m bench.shapes_new [--json FILE]

Every selection is of another problem. The solvers' caches of tiles are cleared at the start of a list ("list"), or
before every selection ("alone"). Another size of a known layer finds its kernels on disk; it is measured once, in its
own process, because it happens once in a program.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import cpuconv
from autotune.interpreter import python
from autotune.machine.device import fingerprint
from autotune.paths import VARIABLE
from autotune.store.store import Row, Store
from bench.shapes.drawn import draw
from cpuconv.conv import session
from cpuconv.conv.choice import model, select, tuned
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.recipe import assemble
from cpuconv.kernels.products import tiling
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE
from cpuconv.solvers.shared import blocked, transformed
from cpuconv.solvers.shared.lanes import lanewise
from cpuconv.tuning.workload import workload

CANONICAL = Path(__file__).parent / "shapes" / "canonical.txt"
DRAWN, SEED = 200, 31
ROWS, ROWS_A_PROBLEM = 1000, 8  # size of a store that has none of the problems
LAYERS = (  # input and output channels, kernel size, three plane sizes
    (64, 128, 3, (56, 60, 50)),
    (64, 64, 3, (56, 50, 62)),
    (256, 64, 1, (56, 44, 60)),
    (3, 64, 7, (224, 200, 240)),
    (48, 64, 5, (35, 41, 30)),
)
ROUNDS = 5  # rounds of selections; each problem's time is the median
RUNS = 9  # warm calls, whose median is subtracted from the first call's time


def lists(threads: int) -> dict[str, list[ConvProblem]]:
    """Return the problems by list, NCHW in and out."""
    lines = [line for line in CANONICAL.read_text().splitlines() if line and not line.startswith("#")]
    canonical = [ConvProblem.parse(line, threads=threads) for line in lines]
    drawn = [replace(each, in_layout="NCHW", out_layout="NCHW") for each in draw(DRAWN, SEED, threads)]
    return {"canonical": canonical, "drawn": list(dict.fromkeys(drawn))}


def forget() -> None:
    """Clear the caches of solvers, selections and store queries."""
    solvers = [sys.modules[solver.module] for solver in TABLE]
    for module in (*solvers, blocked, lanewise, tiling, transformed):
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
                value.cache_clear()
    session.current.forget_choices()


def choices(strategy: str, accuracy: str, auto: bool) -> dict[str, dict[str, float]]:
    """Time selections in microseconds: geometric mean and worst, by list and by cached state."""
    limits = Limits(accuracy)

    def choose(problem: ConvProblem) -> None:
        if auto:
            problem = select.resolve_layouts(problem, "auto", "auto", limits)
        select.choose(problem, strategy, limits)

    found = {}
    for name, problems in lists(threads=1).items():
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
        found[name] = _summary(_medians(together))
        found[f"{name}, alone"] = _summary(_medians(alone))
    return found


def _medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the median over the rounds for each problem."""
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def stored() -> dict[str, dict[str, float]]:
    """Run `choices` with strategy "cached" and stores that have none of the problems."""
    found = {}
    before = os.environ.get(VARIABLE)
    for rows in (0, ROWS):
        with tempfile.TemporaryDirectory() as folder:
            os.environ[VARIABLE] = folder
            with Store(Path(folder) / "autotune.sqlite") as store:
                store.put(_rows(rows))
            for name, figures in choices("cached", "standard", auto=False).items():
                found[f"{name}, {rows} rows"] = figures
    os.environ.pop(VARIABLE)
    if before is not None:
        os.environ[VARIABLE] = before
    forget()
    return found


def _rows(count: int) -> list[Row]:
    device, rows = fingerprint().key, []
    for problem in draw(count // ROWS_A_PROBLEM, SEED + 1):
        problem = replace(problem, in_layout="NCHW", out_layout="NCHW")
        for place, ranked in enumerate(model.ranking(problem)[:ROWS_A_PROBLEM]):
            name, seconds = str(ranked.candidate), 1e-3 * (1 + place)
            row = Row(device, problem.key, name, workload.sources_of(name), "ok", median=seconds, score=seconds)
            rows.append(row._replace(spread=1e-6, count=9))
    return rows


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
    candidate = select.prefer_packed(problem, Limits(), choice, forms).candidate
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


def _summary(times: Sequence[float]) -> dict[str, float]:
    mean = math.exp(sum(map(math.log, times)) / len(times))
    return {"geomean": 1e6 * mean, "worst": 1e6 * max(times), "median": 1e6 * statistics.median(times)}


_PARTS = {"first": first, "sizes": sizes}


def _apart(part: str) -> Any:
    """Run a part in its own process and return its result."""
    command = python("-m", "bench.shapes_new", "--part", part)
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--part", choices=_PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(_PARTS[options.part]()))
        return
    _apart("sizes")  # compiles its kernels to disk
    found: dict[str, Any] = {"first choice of a process, ms": _apart("first"), "another size, ms": _apart("sizes")}
    for accuracy in ("standard", "exact"):
        for layout, auto in (("NCHW", False), ("auto", True)):
            found[f"choice, {accuracy}, {layout}, µs"] = choices("heuristic", accuracy, auto)
    found["choice, cached, µs"] = stored()
    print(f"first choice of a process: {found['first choice of a process, ms']:.1f} ms\n")
    for title, table in found.items():
        if isinstance(table, dict):
            print(title)
            for name, figures in table.items():
                print(f"  {name:34}", *(f"{what} {value:.3g}" for what, value in figures.items()), sep="  ")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
