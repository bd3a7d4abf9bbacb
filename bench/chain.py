"""A network's convolutions one after another, beside what the tuner says they take: `python -m bench.chain --help`.

The tuner times each convolution by itself, with cold weights; in a network each runs once, after all the others. Here
the plans of an ONNX file's convolutions, all with weights of their own, are called one after another, each on what the
one before has just written. The sum of the tuner's times should foretell that within 10%. The tuner works in a store of
its own that is thrown away.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/chain.py` works too

import numpy as np
from tabulate import tabulate

import layouts
from autotune.machine.device import fingerprint
from autotune.store.rows import COLD
from autotune.store.store import Store
from autotune.tuning.candidates import timed_rows
from autotune.tuning.effort import EFFORTS
from autotune.tuning.warmup import warmup
from autotune.workload import ADMITS, Problem, Reading
from cpuconv.choice.model import Choice, Limits
from cpuconv.plan import Plan
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import Candidate
from cpuconv.solvers.shared.base import aligned
from cpuconv.tuning.trial import data
from cpuconv.tuning.workload import workload

SPEC = "cpuconv.tuning.workload:workload"
MODEL = "backend/test/data/light/light_resnet50.onnx"  # in the package onnx
WITHIN = 0.10  # of the chain's time, that the tuner's may be off
PASSES = 40  # over the chain: a second or two
FIRST = 3  # passes that do not count: caches, pages and kernels settle


@dataclass(frozen=True)
class Layer:
    """One convolution: how often the network has it, what runs it, and its seconds, by the tuner and in the chain."""

    label: str
    count: int
    algorithm: str
    tuned: float
    chained: float = math.nan


@dataclass(frozen=True)
class Result:
    """Seconds of all, by the tuner and in the chain, and of each layer."""

    tuned: float
    chained: float
    layers: Sequence[Layer]

    @property
    def ratio(self) -> float:
        """What the tuner foretells, over what the chain takes."""
        return self.tuned / self.chained

    @property
    def is_met(self) -> bool:
        """Whether that is near enough."""
        return abs(self.ratio - 1.0) <= WITHIN


def judge(layers: Sequence[Layer], passes: Sequence[Sequence[float]]) -> Result:
    """The result of passes over the chain, each of the seconds of every call: a layer's calls follow one another.

    The chain takes the sum of the calls' medians: what other programs do to a few calls of each pass does not move it.
    """
    ends = np.cumsum([layer.count for layer in layers])
    calls = np.median(np.asarray(passes), axis=0)
    shares = [float(part.sum()) for part in np.split(calls, ends[:-1])]
    timed = [
        Layer(layer.label, layer.count, layer.algorithm, layer.tuned, share / layer.count)
        for layer, share in zip(layers, shares, strict=True)
    ]
    tuned = sum(layer.count * layer.tuned for layer in layers)
    return Result(tuned, float(calls.sum()), timed)


class Chain:
    """Plans of convolutions, each with weights of its own; they read and write two buffers in turn."""

    def __init__(self, chosen: Iterable[tuple[ConvProblem, str]]) -> None:
        calls = []
        for problem, name in chosen:
            candidate = Candidate.parse(name)
            x, w, bias, residual = data(problem)
            weight = candidate.packing(problem).pack(w, problem.threads)
            plan = Plan(problem, Choice(candidate, "named"), Limits(accuracy="fast"), weight, bias)
            out = layouts.get(problem.out_layout).shape(*problem.out_shape)
            calls.append((plan, x, residual, out))
        size = max(max(x.size, math.prod(out)) for _, x, _, out in calls)
        buffers = aligned(size), aligned(size)
        for buffer in buffers:
            buffer[:] = np.resize(calls[0][1], size)
        self._calls = []
        for number, (plan, x, residual, out) in enumerate(calls):
            source, target = buffers[number % 2], buffers[1 - number % 2]
            view = target[: math.prod(out)].reshape(out)
            self._calls.append((plan, source[: x.size].reshape(x.shape), residual, view))

    @property
    def weight_bytes(self) -> int:
        """Of all packed weights."""
        return sum(plan.packed_weight_bytes for plan, *_ in self._calls)

    def run(self) -> list[float]:
        """Seconds of each call of one pass."""
        ends = [time.perf_counter()]
        for plan, x, residual, out in self._calls:
            plan.run(x, residual, out)
            ends.append(time.perf_counter())
        return [later - earlier for earlier, later in zip(ends, ends[1:], strict=False)]


def tune(problems: Sequence[Problem], effort: str) -> list[Layer]:
    """What the tuner finds for each problem, in a new store."""
    with tempfile.TemporaryDirectory(prefix="bench-chain-") as folder, Store(Path(folder) / "store.sqlite") as store:
        warmup(workload, problems, store, effort, spec=SPEC)
        layers = []
        for problem in problems:
            rows = timed_rows(workload, problem.key, store, COLD)
            best = next(row for row in rows if row.accuracy in ADMITS["standard"])
            layers.append(Layer(problem.label, problem.count, best.candidate, best.median))
    return layers


def main(argv: Sequence[str] | None = None) -> int:
    """Print both times; 1 if they differ by more than a tenth."""
    options = parser().parse_args(argv)
    names = tuple(options.layouts.split(","))
    problems = workload.load(str(options.model or model()), Reading(layouts=names, threads=options.threads))
    layers = tune(problems, options.effort)
    keys = [(ConvProblem.parse(problem.key), layer) for problem, layer in zip(problems, layers, strict=True)]
    chain = Chain((problem, layer.algorithm) for problem, layer in keys for _ in range(layer.count))
    result = judge(layers, [chain.run() for _ in range(FIRST + options.passes)][FIRST:])
    if options.json:
        told = asdict(result) | {"ratio": result.ratio, "met": result.is_met, "device": fingerprint().key}
        print(json.dumps(told | {"threads": options.threads, "weight_bytes": chain.weight_bytes}, indent=1))
    else:
        print(table(result))
        megabytes = chain.weight_bytes / (1 << 20)
        print(f"\n{len(layers)} layers, {megabytes:.0f} MB of packed weights, threads: {options.threads}")
        print(f"tuner {result.tuned * 1e3:.2f} ms, chain {result.chained * 1e3:.2f} ms, ratio {result.ratio:.3f}")
    return int(not result.is_met)


def table(result: Result) -> str:
    """A line a layer."""
    rows = [
        (each.label, each.count, each.tuned * 1e6, each.chained * 1e6, each.tuned / each.chained, each.algorithm)
        for each in result.layers
    ]
    headers = ("layer", "count", "tuner µs", "chain µs", "ratio", "algorithm")
    return tabulate(rows, headers, floatfmt=("", "", ".0f", ".0f", ".2f", ""))


def model() -> Path:
    """ResNet-50, as the package onnx has it."""
    import onnx

    return Path(onnx.__file__).parent / MODEL


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.chain", description=__doc__.splitlines()[0])
    p.add_argument("--model", type=Path, help="an ONNX file (ResNet-50 of the package onnx)")
    p.add_argument("--threads", type=int, default=1, help="of the convolutions (1)")
    p.add_argument("--layouts", default="auto,auto", help="in and out (auto,auto)")
    p.add_argument("--effort", choices=EFFORTS, default="quick", help="of the tuner (quick)")
    p.add_argument("--passes", type=int, default=PASSES, help=f"over the chain ({PASSES})")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


if __name__ == "__main__":
    sys.exit(main())
