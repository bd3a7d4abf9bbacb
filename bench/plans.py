"""Compare ways to run networks, as layout plans and open sizes: `python -m bench.plans --help`.

A network runs as compiled by `compile`; with as many operators as possible in channel blocks; with as many as possible
in NCHW; by the greedy plan; as planned without tuned results; and with all input sizes open but channels, where each
call looks its program up. All run in one process, and whole runs are timed in turn, in the tuner's rounds. They are
compared with the sum of the layers alone: tuned times of convolutions with cold weights, and for matrix multiplications
the time to read their weights from memory. Without tuned results for a layer there is no sum. The times of the other
operators are listed by kind.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

import cpuconv
from autotune.store.rows import COLD
from autotune.timing.rounds import Rounds, run_rounds
from autotune.timing.sample import calibrate
from bench import options
from bench.networks.problem import asked, problems
from bench.report import NOTHING
from cpuconv.conv.choice.target import IN_NETWORK, Target
from cpuconv.conv.choice.tuned import best, roofs, rows
from cpuconv.graph.ir import Graph
from cpuconv.isa import current
from cpuconv.network.reports.timing import time_operations
from cpuconv.network.running.building import build
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.layout import NetworkPlan, NodePlan, lay_out
from cpuconv.network.selection.winners import winner
from cpuconv.network.sizes.prepared import Rewriting, prepared
from cpuconv.problem.problem import ConvProblem
from cpuconv.reading.onnx_reader import read
from cpuconv.tuning.network_race import Run

PLANNED, UNTUNED, OPEN = "planned", "untuned", "open"
WAYS = (UNTUNED, "cheapest", "blocked", "dense", "greedy", OPEN)  # untuned, plans by other rules, and open sizes
PRODUCTS = ("Linear", "Gemm", "MatMul")
RUNS, MAX_KINDS = 15, 6  # runs of an operator alone; kinds of operators that are listed
SELECTED_PLAN = "same"  # mark of a way whose plan is the selected one


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each network, number of images and threads."""
    args = parser().parse_args(argv)
    chosen, ways = asked(args.folder, args.networks, args.set), options.words(args.ways, WAYS, "--ways")
    found = []
    for batch in args.batch:
        with problems(args.folder, chosen, batch) as all_problems:
            for threads in args.threads:
                for name, problem in all_problems.items():
                    told = compared(problem.path, problem.feed(), threads, ways, args.seconds)
                    found.append({"network": name, "batch": batch, "threads": threads, **told})
    print(table(found, ways))
    for line in found:
        print(f"{line['network']}, {line['threads']}:", ", ".join(f"{op} {1e6 * t:.0f} µs" for op, t in line["others"]))
    options.write_json(args.json, found)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    asked = "folder", "--networks", "--set", "--threads", "--batch", "--seconds", "--json"
    p = options.parser("plans", __doc__, *asked, seconds=1.5)
    p.add_argument("--ways", default=",".join(WAYS[:-1]), help="comma-separated, also open (%(default)s)")
    return p


def compared(
    path: Path, feed: Mapping[str, np.ndarray], threads: int, ways: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Return a network's plan, its seconds, each way's time over the plan's (centre, low, high), the plan's time over
    the sum of its layers alone, and the seconds of other operators by kind."""
    tuned = Target(current(), threads, "cached")
    model = read(path)
    graph = prepared(model, {name: array.shape for name, array in feed.items()}, Rewriting()).graph
    network_plans = {PLANNED: lay_out(graph, tuned, plan=winner(graph, tuned))}
    for way in (way for way in ways if way != OPEN):
        target = replace(tuned, strategy="heuristic") if way == UNTUNED else tuned
        other = lay_out(graph, target, plan=None if way == UNTUNED else way)
        if way == UNTUNED or other.decisions() != network_plans[PLANNED].decisions():
            network_plans[way] = other
    layers, packed = alone(network_plans[PLANNED], threads), Packed()
    programs: dict[str, Executable] = {}
    runs: dict[str, Run] = {}
    for way, layout in network_plans.items():
        programs[way] = program = build(layout, layout.target, packed)
        first = runs[PLANNED].outputs if runs else None
        runs[way] = Run(program, [feed[name] for name in program.inputs], first)
    if OPEN in ways:
        runs[OPEN] = OpenRun(cpuconv.compile(opened(model), threads=threads), feed, runs[PLANNED].outputs)
    for way, run in runs.items():
        if (error := run.check()) > run.limit:
            raise SystemExit(f"{path.stem}, {way}: outputs differ by {error:.1g}.")
    rounds, entrants = Rounds(), {way: calibrate(run.run, summary=statistics.median) for way, run in runs.items()}
    run_rounds(rounds, entrants, rng=random.Random(0), most=1000, seconds=seconds)
    took = rounds.median(PLANNED)
    return {
        "plan": network_plans[PLANNED].plan,
        "seconds": took,
        "ways": {way: tuple(rounds.compare(way, PLANNED)) if way in runs else SELECTED_PLAN for way in ways},
        "layers": layers and took / layers,
        "others": others(programs[PLANNED], [feed[name] for name in programs[PLANNED].inputs], runs[PLANNED].outputs),
    }


class OpenRun(Run):
    """A network with open sizes that is called as by a user, as a run to compare."""

    def __init__(self, model: cpuconv.Model, feed: Mapping[str, np.ndarray], expected: Sequence[np.ndarray]) -> None:
        outputs = model.run(feed)
        self._call, self._expected, self.limit = (lambda: model.run(feed, outputs)), expected, 1e-3
        self.outputs = list(outputs.values())

    def run(self) -> None:
        self._call()


def opened(graph: Graph) -> Graph:
    """Return the graph with all sizes of its inputs open except channels."""
    values = {name: replace(value, shape=None) for name, value in graph.values.items()}
    for name in graph.inputs:
        value = graph.value(name)
        shape = value.shape and tuple(dim if at == 1 else f"{name}.{at}" for at, dim in enumerate(value.shape))
        values[name] = replace(value, shape=shape)
    return replace(graph, values=values)


def others(program: Executable, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> list[tuple[str, float]]:
    """Return seconds of operators other than convolutions by kind, longest first; each is timed alone, in turn."""
    took: dict[str, float] = {}
    seconds, _ = time_operations(program, inputs, outputs, RUNS)
    for work, time in zip(program.operations, np.median(seconds, axis=0), strict=True):
        if problem_of(work.node_plan) is None:
            op = work.node_plan.node.op
            took[op] = took.get(op, 0.0) + float(time)
    return sorted(took.items(), key=lambda each: -each[1])[:MAX_KINDS]


def problem_of(node_plan: NodePlan) -> ConvProblem | None:
    """Return the convolution problem of a node, or None."""
    return getattr(node_plan.offer.detail, "problem", None) if node_plan.offer is not None else None


def alone(network_plan: NetworkPlan, threads: int) -> float | None:
    """Return the sum of the seconds of convolutions and matrix multiplications alone; None if one is not tuned."""
    total, known = 0.0, roofs(threads)
    for each in network_plan.nodes:
        problem = problem_of(each)
        if problem is not None:
            chosen = best(problem, IN_NETWORK)
            cold = [found.row for found in rows(problem) if found.current and found.row.weights == COLD]
            times = [row.median for row in cold if chosen is not None and row.candidate == chosen.row.candidate]
            if chosen is None or known is None:
                return None
            total += times[0] if times else chosen.row.median  # a shipped table has only warm weights
        elif each.node.op in PRODUCTS and known is not None:
            weights = [
                network_plan.graph.constants[name].nbytes
                for name in each.node.inputs
                if name in network_plan.graph.constants
            ]
            total += sum(weights) / known.levels[-1].gbs * 1e-9
    return total


def table(found: Sequence[Mapping[str, Any]], ways: Sequence[str]) -> str:
    """Table with a row per network: milliseconds and ratios; below it, geometric means."""
    lines = [
        [
            line["network"], line["batch"], line["threads"], line["plan"], f"{1e3 * line['seconds']:.2f}",
            *(_ratio(line["ways"][way]) for way in ways),
            NOTHING if line["layers"] is None else f"{line['layers']:.2f}",
        ]
        for line in found
    ]  # fmt: skip
    heads = ("network", "images", "threads", "plan", "ms", *(f"{way} ÷ plan" for way in ways), "plan ÷ layers alone")
    means = []
    for way in ways:
        centres = [1.0 if line["ways"][way] == SELECTED_PLAN else line["ways"][way][0] for line in found]
        means.append(f"{way} ÷ plan: geometric mean {statistics.geometric_mean(centres):.3f}, least {min(centres):.3f}")
    return "\n".join((tabulate(lines, heads, disable_numparse=True), "", *means))


def _ratio(ratio: Sequence[float] | str) -> str:
    return ratio if isinstance(ratio, str) else "{:.2f} ({:.2f} to {:.2f})".format(*ratio)


if __name__ == "__main__":
    sys.exit(main())
