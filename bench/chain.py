"""Compare a chain of a network's convolutions with the tuner's times: `python -m bench.chain --help`.

The tuner times each convolution alone, with cold weights; in a network each runs once, after all the others. This
benchmark calls the plans of an ONNX file's convolutions one after another, each with its own weights, on the output of
the previous one. The sum of the layers' samples should predict the chain's time within 10%. Samples are taken as in the
tuner, in turn with passes over the chain, because the machine's speed may have changed since the tuning; the sum of the
tuner's own times is printed, too. The tuner uses a temporary store.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/chain.py` works too

import numpy as np
from tabulate import tabulate

import layouts
from autotune.machine.device import fingerprint
from autotune.store.rows import COLD
from autotune.store.store import Store
from autotune.timing.sample import calibrate
from autotune.tuning.candidates import timed_rows
from autotune.tuning.effort import EFFORTS
from autotune.tuning.search import SUMMARY
from autotune.tuning.warmup import warmup
from autotune.tuning.worker import Workers
from autotune.workload import ADMITS, Problem, Reading
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F32
from cpuconv.memory.large_pages import Pool, large
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.random_operands import random_operands
from cpuconv.tuning.workload import workload

SPEC = "cpuconv.tuning.workload:workload"
MODEL = "backend/test/data/light/light_resnet50.onnx"  # in the package onnx
WITHIN = 0.10  # allowed error of the tuner's prediction, relative to the chain's time
ROUNDS = 20  # rounds of one pass over the chain and one sample of each layer: some five seconds
FIRST = 2  # warm-up rounds: caches, pages and kernels


@dataclass(frozen=True)
class Layer:
    """One convolution: its count in the network, its algorithm, and its seconds: of the tuner, of samples taken as in
    the tuner, and in the chain."""

    label: str
    count: int
    algorithm: str
    tuned: float
    sampled: float = math.nan
    chained: float = math.nan


@dataclass(frozen=True)
class Result:
    """Total seconds of the layers, and each layer."""

    tuned: float
    sampled: float
    chained: float
    layers: Sequence[Layer]

    @property
    def ratio(self) -> float:
        """Predicted time (sum of samples) over the chain's time."""
        return self.sampled / self.chained

    @property
    def is_met(self) -> bool:
        """Whether the prediction is within `WITHIN`."""
        return abs(self.ratio - 1.0) <= WITHIN


def judge(layers: Sequence[Layer], passes: Sequence[Sequence[float]], samples: Sequence[Sequence[float]]) -> Result:
    """Return the result of passes over the chain (seconds of every call, grouped by layer) and of as many samples of
    every layer.

    The chain's time is the sum of the calls' medians, so disturbances of a few calls per pass do not affect it.
    """
    ends = np.cumsum([layer.count for layer in layers])
    calls = np.median(np.asarray(passes), axis=0)
    shares = [float(part.sum()) for part in np.split(calls, ends[:-1])]
    sampled = np.median(np.asarray(samples), axis=0)
    timed = [
        replace(layer, sampled=float(sample), chained=share / layer.count)
        for layer, sample, share in zip(layers, sampled, shares, strict=True)
    ]
    tuned, sampled = (sum(each.count * getattr(each, name) for each in timed) for name in ("tuned", "sampled"))
    return Result(tuned, sampled, float(calls.sum()), timed)


class LayerChain:
    """Plans of convolutions, each with its own weights; they read and write two buffers in turn."""

    def __init__(self, chosen: Iterable[tuple[ConvProblem, str]]) -> None:
        calls, pool = [], Pool()
        for problem, name in chosen:
            candidate = Candidate.parse(name)
            x, w, bias, residual, _ = random_operands(problem)
            weight = candidate.packing(problem).pack(w, problem.threads, pool.take)
            plan = Plan(problem, Choice(candidate, "named"), Limits(accuracy="fast"), weight, bias)
            out = layouts.get(problem.out_layout).shape(*problem.out_shape)
            calls.append((plan, x, residual, out))
        size = max(max(x.size, math.prod(out)) for _, x, _, out in calls)
        buffers = large(F32.bytes * size).view(np.float32), large(F32.bytes * size).view(np.float32)
        for buffer in buffers:
            buffer[:] = np.resize(calls[0][1], size)
        self._calls = []
        for number, (plan, x, residual, out) in enumerate(calls):
            source, target = buffers[number % 2], buffers[1 - number % 2]
            view = target[: math.prod(out)].reshape(out)
            self._calls.append((plan, source[: x.size].reshape(x.shape), residual, view))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return sum(plan.packed_weight_bytes for plan, *_ in self._calls)

    def run(self) -> list[float]:
        """Run one pass and return the seconds of each call."""
        ends = [time.perf_counter()]
        for plan, x, residual, out in self._calls:
            plan.run(x, residual, out)
            ends.append(time.perf_counter())
        return [later - earlier for earlier, later in zip(ends, ends[1:], strict=False)]


def tune(problems: Sequence[Problem], effort: str) -> list[Layer]:
    """Tune each problem in a new store, and return the layers."""
    with tempfile.TemporaryDirectory(prefix="bench-chain-") as folder, Store(Path(folder) / "store.sqlite") as store:
        warmup(workload, problems, store, effort, workers=Workers(SPEC))
        layers = []
        for problem in problems:
            rows = timed_rows(workload, problem.key, store, COLD)
            best = next(row for row in rows if row.accuracy in ADMITS["standard"])
            layers.append(Layer(problem.label, problem.count, best.candidate, best.median))
    return layers


def main(argv: Sequence[str] | None = None) -> int:
    """Print both times; return 1 if they differ by more than a tenth."""
    options = parser().parse_args(argv)
    names = tuple(options.layouts.split(","))
    problems = workload.load(str(options.model or model()), Reading(layouts=names, threads=options.threads))
    layers = tune(problems, options.effort)
    chosen = [(problem.key, layer.algorithm, layer.count) for problem, layer in zip(problems, layers, strict=True)]
    chain = LayerChain((ConvProblem.parse(key), name) for key, name, count in chosen for _ in range(count))
    trials = [workload.prepare(key, name, COLD) for key, name, _ in chosen]
    entrants = [calibrate(trial.run, trial.move, SUMMARY[COLD]) for trial in trials]
    rounds = [(chain.run(), [each.sample() for each in entrants]) for _ in range(FIRST + options.rounds)]
    passes, samples = zip(*rounds[FIRST:], strict=True)
    result = judge(layers, passes, samples)
    if options.json:
        told = asdict(result) | {"ratio": result.ratio, "met": result.is_met, "device": fingerprint().key}
        print(json.dumps(told | {"threads": options.threads, "weight_bytes": chain.weight_bytes}, indent=1))
    else:
        print(table(result))
        megabytes = chain.weight_bytes / (1 << 20)
        print(f"\n{len(layers)} layers, {megabytes:.0f} MB of packed weights, threads: {options.threads}")
        sampled, chained, tuned = (seconds * 1e3 for seconds in (result.sampled, result.chained, result.tuned))
        print(f"samples {sampled:.2f} ms, chain {chained:.2f} ms, ratio {result.ratio:.3f}; tuner {tuned:.2f} ms")
    return int(not result.is_met)


def table(result: Result) -> str:
    """Return the table with a row per layer."""
    rows = [
        (each.label, each.count, *(s * 1e6 for s in (each.tuned, each.sampled, each.chained)), each.algorithm)
        for each in result.layers
    ]
    headers = ("layer", "count", "tuner µs", "sample µs", "chain µs", "algorithm")
    return tabulate(rows, headers, floatfmt=("", "", ".0f", ".0f", ".0f", ""))


def model() -> Path:
    """Return the path of the package onnx's ResNet-50."""
    import onnx

    return Path(onnx.__file__).parent / MODEL


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.chain", description=__doc__.splitlines()[0])
    p.add_argument("--model", type=Path, help="an ONNX file (ResNet-50 of the package onnx)")
    p.add_argument("--threads", type=int, default=1, help="threads of the convolutions (1)")
    p.add_argument("--layouts", default="auto,auto", help="layouts of input and output (auto,auto)")
    p.add_argument("--effort", choices=EFFORTS, default="quick", help="effort of the tuner (quick)")
    p.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of a pass and a sample per layer ({ROUNDS})")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


if __name__ == "__main__":
    sys.exit(main())
