"""Measure the overhead of a call: `python -m bench.overhead --help`."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from bench import options, oracle, shapes
from bench.engine import sample

SHAPE = (1, 1, 8, 8)
SECONDS = 0.02  # duration of one timing
TIMED = ("conv2d(x, w)", "plan(x, out=y)")


def main(argv: Sequence[str] | None = None) -> int:
    """Print µs per call, fastest and median round; then `conv2d` against the plan on the lines of a file."""
    args = parser().parse_args(argv)
    calls = subjects(args.threads)
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # compile, pack, warm
        microseconds(call, args.calls)
    for _ in range(args.rounds):
        for name, call in calls.items():
            rounds[name].append(microseconds(call, args.calls))
    figures = {name: {"best": min(times), "median": statistics.median(times)} for name, times in rounds.items()}
    lines = [] if args.no_lines else [against_plan(line, args) for line in shapes.load(args.shapes, args.lines)]
    rows = [(name, f"{figure['best']:.2f}", f"{figure['median']:.2f}") for name, figure in figures.items()]
    print(tabulate(rows, ("call", "best µs", "median µs"), disable_numparse=True, stralign="right"))
    if lines:
        layers = [(line["name"], *(f"{line[key]:.1f}" for key in TIMED), f"{line['ratio']:.2f}") for line in lines]
        print(
            "", tabulate(layers, ("layer", *(f"{key} µs" for key in TIMED), "ratio"), disable_numparse=True), sep="\n"
        )
        ratios = [line["ratio"] for line in lines]
        print(f"\nconv2d over plan: geomean {statistics.geometric_mean(ratios):.3f}, worst {max(ratios):.2f}")
    data = {"unit": "us", "shape": SHAPE, "threads": args.threads, "calls": figures, "lines": lines}
    options.write_json(args.json, data)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("overhead", __doc__, "--rounds", "--shapes", "--lines", "--json", rounds=7)
    p.add_argument("--calls", type=int, default=20_000, help="calls a round (20000)")
    p.add_argument("--threads", type=int, default=1, help="threads of the plan (1)")
    p.add_argument("--no-lines", action="store_true", help="only the smallest call")
    return p


def subjects(threads: int) -> dict[str, Callable[[], object]]:
    """Return the timed calls: a 3x3 convolution with padding 1 of one 8x8 channel."""
    import cpuconv

    rng = np.random.default_rng(0)
    x = rng.standard_normal(SHAPE, dtype=np.float32)
    w = rng.standard_normal((1, 1, 3, 3), dtype=np.float32)
    constant = w.copy()
    constant.setflags(write=False)  # read once, then identified by the object
    out = np.empty(SHAPE, np.float32)
    plan = cpuconv.plan(SHAPE, w, padding=1, threads=threads)

    def empty(x: np.ndarray, *, out: np.ndarray) -> None:
        return None

    found: dict[str, Callable[[], object]] = {
        "empty Python call": lambda: empty(x, out=out),
        "plan(x, out=out)": lambda: plan(x, out=out),
        "conv2d(x, w), read-only w": lambda: cpuconv.conv2d(x, constant, padding=1, threads=threads),
        "conv2d(x, w), writable w": lambda: cpuconv.conv2d(x, w, padding=1, threads=threads),
    }
    if importlib.util.find_spec("torch"):
        import torch

        tensors = torch.from_numpy(x), torch.nn.Parameter(torch.from_numpy(w))
        found["conv2d(x, w), torch"] = lambda: cpuconv.conv2d(*tensors, padding=1, threads=threads)
    if importlib.util.find_spec("onnx"):
        found |= of_networks(x, threads)
    return found


def of_networks(x: np.ndarray, threads: int) -> dict[str, Callable[[], object]]:
    """Return the calls of a network of one Relu, in ONNX Runtime, too, if it is installed."""
    import onnx

    import cpuconv

    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    file = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    model, feed = cpuconv.compile(file, threads=threads), {"x": x}
    found: dict[str, Callable[[], object]] = {"Model.run, Relu": lambda: model.run(feed)}
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file.SerializeToString(), options, ["CPUExecutionProvider"])
        found["ONNX Runtime, Relu"] = lambda: session.run(None, feed)
    return found


def against_plan(line: shapes.Line, args: argparse.Namespace) -> dict[str, Any]:
    """Return median µs of `conv2d(x, w)` with writable weights and of `plan(x, out=y)` on a line, NCHW, in turn."""
    import cpuconv

    problem = line.problem
    x, w, _ = oracle.arrays(problem)
    top, bottom, left, right = problem.pads
    arguments = (None, problem.stride, ((top, bottom), (left, right)), problem.dilation, problem.groups)
    plan = cpuconv.plan(x.shape, w, *arguments, threads=args.threads)
    out = plan(x)
    calls = (
        lambda: cpuconv.conv2d(x, w, *arguments, threads=args.threads),
        lambda: plan(x, out=out),
    )
    times: list[list[float]] = []
    for turn in range(args.rounds + 1):
        found = [1e6 * statistics.median(sample(call, SECONDS)) for call in calls]
        if turn:  # the first is warm-up
            times.append(found)
    one, other = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    return {"name": line.label, TIMED[0]: one, TIMED[1]: other, "ratio": ratio}


def microseconds(call: Callable[[], object], times: int) -> float:
    """Return µs per call over `times` calls, including the loop and the lambda."""
    clock = time.perf_counter
    repeats = range(times)
    start = clock()
    for _ in repeats:
        call()
    return (clock() - start) / times * 1e6


if __name__ == "__main__":
    sys.exit(main())
