"""What a size that a network has not met costs: `python -m bench.new_sizes --help`.

A process of its own makes a model with open sizes, runs it at one size, and then once and once more at each of others
about as large, drawn at random. The first process only compiles kernels; the second finds them on disk, but no layouts
that were kept. Figures are milliseconds of processor time: of making the program, of the first run beyond the second,
which finds memory and caches warm, and of the second run.

`--kernels` counts instead what is compiled for each size, one after another, from an empty folder on and without packs;
each size lies between a quarter and four times the base's.

Files of fixed sizes are opened in every size but channels. `--conv2d` measures `cpuconv.conv2d` with constant weights
at new sizes instead: of the first call beyond the fastest of five.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(ROOT := Path(__file__).resolve().parents[1]))  # so that `python bench/new_sizes.py` works too

import numpy as np
from tabulate import tabulate

from autotune.interpreter import python
from autotune.paths import VARIABLE, cache_folder
from bench.compare import positive
from bench.dynamic import opened
from cpuconv.runtime.code import together
from cpuconv.runtime.code.packs import serving

LAYERS = (  # channels in and out, kernel, groups
    (64, 128, 3, 1), (64, 64, 3, 1), (256, 64, 1, 1), (3, 64, 7, 1), (48, 64, 5, 1), (96, 96, 5, 96), (128, 128, 3, 1),
)  # fmt: skip
SIDE = 30  # of the images of layers
CALLS = 5
COLUMNS = ("program", "first run", "second run")
Figures = tuple[float, ...]  # milliseconds of a size, by column


def main(argv: Sequence[str] | None = None) -> int:
    """Print medians for each network, or for each layer."""
    args = parser().parse_args(argv)
    if args.kernels:
        for each in args.models:
            print(_counted(args, each))
        return 0
    asked = LAYERS if args.conv2d else args.models
    rows = []
    for at, each in enumerate(asked):
        found = [_apart(args, str(at if args.conv2d else each)) for _ in range(2)][-1]
        name = " ".join(map(str, each)) if args.conv2d else each.stem
        rows.append((name, *(f"{statistics.median(column):.2f}" for column in zip(*found, strict=True))))
    print(f"medians of {args.count} new sizes, ms of processor time, {args.threads} threads\n")
    print(
        tabulate(
            rows,
            ("channels, kernel, groups" if args.conv2d else "network", *(("call",) if args.conv2d else COLUMNS)),
            disable_numparse=True,
        )
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.new_sizes", description=__doc__)
    p.add_argument("models", type=Path, nargs="*", metavar="MODEL", help="ONNX files of one input of rank 4")
    p.add_argument("--base", default="1,3,224,224", metavar="SIZES", help="that is met first (1,3,224,224)")
    p.add_argument("--axes", default="2,3", metavar="AXES", help="whose sizes are drawn (2,3)")
    p.add_argument("--step", type=positive, default=8, help="sizes are multiples of it (8)")
    p.add_argument("--count", type=positive, default=8, help="new sizes (8)")
    p.add_argument("--seed", type=int, default=1, help="of the sizes (1)")
    p.add_argument("--threads", type=positive, default=1, help="of runs (1)")
    p.add_argument("--conv2d", action="store_true", help="convolutions in the place of networks")
    p.add_argument("--kernels", action="store_true", help="count the kernels that are compiled")
    p.add_argument("--one", help=argparse.SUPPRESS)
    return p


def drawn(base: Sequence[int], axes: Sequence[int], step: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Different sizes, each axis between three quarters and five quarters of its own, and the base first."""
    rng = np.random.default_rng(seed)
    found = {tuple(base): None}
    for _ in range(100 * count):
        sizes = list(base)
        for axis in axes:
            ends = 3 * base[axis] // (4 * step), 5 * base[axis] // (4 * step)
            sizes[axis] = step * int(rng.integers(max(1, ends[0]), max(1, ends[1]) + 1))
        found[tuple(sizes)] = None
        if len(found) > count:
            break
    return list(found)


def spread(base: Sequence[int], axes: Sequence[int], step: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """The base, and sizes of which each axis is a quarter to four times its own, evenly by logarithm."""
    rng = np.random.default_rng(seed)
    found = [tuple(base)]
    for factors in np.exp2(rng.uniform(-2, 2, (count, len(axes)))):
        sizes = list(base)
        for axis, factor in zip(axes, factors, strict=True):
            sizes[axis] = step * max(1, round(base[axis] * factor / step))
        found.append(tuple(sizes))
    return found


def _counted(args: argparse.Namespace, model: Path) -> str:
    """How many kernels each size compiles."""
    with tempfile.TemporaryDirectory(prefix="bench-sizes-") as folder:
        found = _apart(args, str(model), {VARIABLE: folder, serving.VARIABLE: serving.OFF, together.VARIABLE: "1"})
    sizes = spread(_numbers(args.base), _numbers(args.axes), args.step, args.count, args.seed)
    told = ", ".join(
        f"{'x'.join(str(size[axis]) for axis in _numbers(args.axes))}: {int(count)}"
        for size, (count,) in zip(sizes, found, strict=True)
    )
    later = [int(count) for (count,) in found[1:]]
    most = f"{sum(later)} for {len(later)} later sizes, none for {later.count(0)} of them"
    return f"{model.stem}: {int(found[0][0])} kernels for the first size, {most}\n  {told}"


def _apart(args: argparse.Namespace, one: str, environ: Mapping[str, str] | None = None) -> list[Figures]:
    """The figures of every new size, from a new process."""
    if not environ:
        shutil.rmtree(cache_folder() / "layouts", ignore_errors=True)  # a size that was met before is none here
    options = [f"--{name}={getattr(args, name)}" for name in ("base", "axes", "step", "count", "seed", "threads")]
    options += [f"--{name}" for name in ("conv2d", "kernels") if getattr(args, name)]
    command = python("-m", "bench.new_sizes", *options, "--one", one)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, **(environ or {}), "PYTHONPATH": path}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    return [tuple(line) for line in json.loads(done.stdout.splitlines()[-1])]


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _network(args: argparse.Namespace) -> Iterator[Figures]:
    import cpuconv
    from cpuconv.reading.onnx_reader import read

    model = cpuconv.compile(opened(read(Path(args.one))), threads=args.threads)
    (port,), programs = model.inputs, model._programs
    rng = np.random.default_rng(0)
    base, axes = _numbers(args.base), _numbers(args.axes)
    for at, sizes in enumerate(drawn(base, axes, args.step, args.count, args.seed)):
        feed = {port.name: rng.standard_normal(sizes, np.float32)}
        program = _taken(partial(programs.find, (sizes,)))
        first, second = (_taken(partial(model.run, feed)) for _ in range(2))
        if at:
            yield program, first - second, second


def _kernels(args: argparse.Namespace) -> Iterator[Figures]:
    import cpuconv
    from cpuconv.reading.onnx_reader import read
    from cpuconv.runtime.code.cache import Statistics

    model = cpuconv.compile(opened(read(Path(args.one))), threads=args.threads)
    for sizes in spread(_numbers(args.base), _numbers(args.axes), args.step, args.count, args.seed):
        before = Statistics.compiled
        model.run({model.inputs[0].name: np.zeros(sizes, np.float32)})
        yield (float(Statistics.compiled - before),)


def _layer(args: argparse.Namespace) -> Iterator[Figures]:
    import cpuconv

    c, k, taps, groups = LAYERS[int(args.one)]
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((k, c // groups, taps, taps), np.float32)
    weight.flags.writeable = False
    for at, sizes in enumerate(drawn((1, c, SIDE, SIDE), (2, 3), 1, args.count, args.seed)):
        x = rng.standard_normal(sizes, np.float32)

        def call(x: np.ndarray = x) -> Any:
            return cpuconv.conv2d(x, weight, padding=taps // 2, groups=groups, threads=args.threads)

        first, *later = (_taken(call) for _ in range(1 + CALLS))
        if at:
            yield (first - min(later),)


def _taken(call: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


if __name__ == "__main__":
    options = parser().parse_args()
    if options.one is None:
        sys.exit(main())
    figures = _kernels if options.kernels else _layer if options.conv2d else _network
    print(json.dumps(list(figures(options))))
