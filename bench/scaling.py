"""Predict the speed on more cores than this machine has: `python -m bench.scaling --help`.

For every number of workers, a convolution or network is planned as on such a machine, and its kernel calls are divided
as their drivers divide them. `bench.loads` computes the work of the worker that ends last. The time is that work at the
cost model's speed of one core, or the bound by the roofs of that many cores if it is longer, plus one barrier per
shared call. Nothing is run or compiled.

Roofs are those of one thread from `autotune doctor --measure`, else the model's. Private caches and L3 scale with the
cores; memory is as fast as `--memory-cores` cores. The cost of a barrier is measured for two workers. For more workers,
which are signalled one after another, it is assumed (`cpuconv.kernels.binding.processor`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/scaling.py` works too

import numpy as np
from tabulate import tabulate

from autotune.files import write_whole
from autotune.machine.device import fingerprint
from autotune.machine.roofline import SHARED, Level, Roofs, bounds
from autotune.machine.roofline import Work as Least
from bench import shapes
from bench.loads import Shared, load, shared
from bench.settings import machine_name, words
from cpuconv.conv import least_work as algorithms
from cpuconv.conv.choice.model import Choice, modelled_cost
from cpuconv.conv.choice.select import choose, preferred_layouts
from cpuconv.conv.choice.target import IN_NETWORK, Target
from cpuconv.conv.choice.tuned import roofs as measured_roofs
from cpuconv.conv.recipe import assemble
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.processor import join_seconds
from cpuconv.kernels.binding.steps import Step
from cpuconv.network.running.building import Builder
from cpuconv.network.running.executable import CompiledNode
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.layout import lay_out
from cpuconv.network.sizes.prepared import Rewriting, prepared
from cpuconv.network.sizes.specialise import bound_inputs
from cpuconv.problem.problem import ConvProblem
from cpuconv.reading.onnx_reader import read

WORKERS = (4, 8, 16, 32, 64)
MEMORY_CORES = 4
MIN_BALANCE = {8: 0.75, 16: 0.55}  # minimum balance of each convolution, by workers


@dataclass(frozen=True)
class Machines:
    """Roofs for any number of cores: those of one core, and the number of cores that saturate memory."""

    one: Roofs
    memory_cores: int

    def roofs(self, workers: int) -> Roofs:
        """Return the combined roofs of `workers` cores."""
        levels = tuple(
            Level(
                level.name,
                level.size * (1 if level.name in SHARED else workers),
                level.gbs * self._cores(level, workers),
            )
            for level in self.one.levels
        )
        peaks = tuple((name, gflops * workers) for name, gflops in self.one.peaks)
        return Roofs(self.one.fma_gflops * workers, self.one.store_gbs * workers, levels, peaks)

    def _cores(self, level: Level, workers: int) -> int:
        return workers if np.isfinite(level.size) else min(workers, self.memory_cores)


@dataclass(frozen=True)
class Predicted:
    """One operator on some number of workers.

    Attributes
    ----------
    label, algorithm : str
    workers : int
    share : float
        Cycles of the worker that ends last, over those of all.
    balance : float
        Cycles of one worker alone over the cycles that all workers have until the last one ends: 1 if no worker waits
        and no work is done twice.
    bytes : dict
        Bytes read from each level of memory, by name.
    barriers : int
    single, seconds : float
        Time on one worker, and on all, in seconds.
    speed_up, efficiency : float
    bound_by : str
        "work", a roof, or "barriers".
    ends : tuple[float, ...]
        Times, in seconds, when each worker starts the next operator of the same set.
    is_shared : bool
        Whether workers share it or another operator of the same set.
    """

    label: str
    algorithm: str
    workers: int
    share: float
    balance: float
    bytes: dict[str, float]
    barriers: int
    single: float
    seconds: float
    bound_by: str
    ends: tuple[float, ...]
    is_shared: bool

    @property
    def speed_up(self) -> float:
        """Speed-up over one worker."""
        return self.single / self.seconds

    @property
    def efficiency(self) -> float:
        """Speed-up divided by the number of workers."""
        return self.speed_up / self.workers

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {"speed_up": self.speed_up, "efficiency": self.efficiency}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a convolution is less balanced than `--check` requires."""
    args = parser().parse_args(argv)
    machines = Machines(one_core(), args.memory_cores)
    lines = [each for line in shapes.load(args.shapes, args.lines) for each in line_on(line, args.workers, machines)]
    found: dict[str, list[Predicted]] = {"lines": lines}
    paths = {path.stem: path for path in sorted(args.folder.glob("*.onnx"))} if args.folder else {}
    for name in words(args.networks, paths, "--networks") or tuple(paths):
        found[name] = [each for count in args.workers for each in network_on(paths[name], count, machines)]
    if args.json:
        data = {"cpu": machine_name(), "memory_cores": machines.memory_cores}
        plain = {name: [each.to_dict() for each in rows] for name, rows in found.items()}
        write_whole({args.json: json.dumps(data | {"predicted": plain}, indent=1) + "\n"})
    print(table(lines, args.workers), networks_table(found, args.workers), sep="\n\n")
    short = [each for rows in found.values() for each in rows if each.algorithm and too_short(each)]
    if args.check and short:
        print("\nless balanced than asked for:", table(short, args.workers), sep="\n")
    return int(bool(args.check and short))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.scaling", description=__doc__)
    p.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", help="folder with the files of bench.networks (none: lines only)"
    )
    p.add_argument("--networks", default="", metavar="NAMES", help="comma-separated (all in the folder)")
    p.add_argument("--shapes", type=Path, default=shapes.CANONICAL, metavar="FILE", help="benchdnn problem strings")
    p.add_argument("--lines", default="", metavar="REGEX", help="only lines whose name or problem matches")
    p.add_argument("--workers", type=lambda text: tuple(map(int, text.split(","))), default=WORKERS, help="as 4,8,16")
    p.add_argument(
        "--memory-cores",
        type=int,
        default=MEMORY_CORES,
        metavar="N",
        help="cores that saturate memory bandwidth (%(default)s)",
    )
    p.add_argument("--check", action="store_true", help=f"fail where a convolution's balance is under {MIN_BALANCE}")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything computed")
    return p


def too_short(each: Predicted) -> bool:
    """Whether a convolution on several workers is less balanced than required."""
    return each.barriers > 0 and each.balance < MIN_BALANCE.get(each.workers, 0.0)


def one_core() -> Roofs:
    """Return the roofs of one core: measured ones, else the model's."""
    known = measured_roofs(1)
    if known is not None:
        return known
    here, caches = machine(), dict(fingerprint().caches)
    rates = {"L1d": 2 * here.isa.l2_rate, "L2": here.isa.l2_rate, "L3": here.isa.l3_rate}
    gbs = here.isa.frequency * 1e-9
    figures = {f"{name[:2].lower()}_gbs": rate * gbs for name, rate in rates.items() if name in caches}
    peak = 2 * here.isa.lanes * here.isa.fma_rate * gbs
    figures |= {"float32_gflops": peak, "store_gbs": here.isa.lanes * 4 * gbs, "dram_gbs": here.isa.dram_rate * gbs}
    return Roofs.of(figures, caches, 1)


# --- one convolution ------------------------------------------------------------------------------------------------


def line_on(line: shapes.Line, workers: Sequence[int], machines: Machines) -> Iterator[Predicted]:
    """Predict a line of the benchmark in the instruction set's blocked layouts, for each number of workers."""
    problem = line.problem
    forms = preferred_layouts(problem.c)[0], preferred_layouts(problem.k)[0]
    problem = replace(problem, in_layout=forms[0], out_layout=forms[1])
    one = _choice(replace(problem, threads=1))
    single = modelled_cost(replace(problem, threads=1), one.candidate).estimate
    for count in workers:
        yield convolution_on(line.label, replace(problem, threads=count), single, machines)


def _choice(problem: ConvProblem) -> Choice:
    return choose(problem, "cached", IN_NETWORK)


def convolution_on(
    label: str, problem: ConvProblem, single: float, machines: Machines,
    workers: int | None = None, before: Predicted | None = None,
) -> Predicted:  # fmt: skip
    """Predict a convolution on the problem's threads out of `workers`, concurrent with the operator `before`; it takes
    `single` seconds on one worker."""
    candidate = _choice(problem).candidate
    alone = replace(problem, threads=1)
    steps = [replace(step, parts=step.parts * (problem.threads > 1)) for step in assemble(problem, candidate).steps]
    least = algorithms.work(problem, candidate)
    seconds = modelled_cost(alone, candidate).estimate
    return _predicted(label, str(candidate), workers or problem.threads, assemble(alone, candidate).steps, steps, least,
                      seconds, single, machines, before)  # fmt: skip


def _predicted(
    label: str, algorithm: str, workers: int, alone: Sequence[Step], steps: Sequence[Step], least: Least,
    seconds: float, single: float, machines: Machines, before: Predicted | None,
) -> Predicted:  # fmt: skip
    """Predict an operator: its steps take `seconds` on one worker, the best steps for one worker take `single`."""
    cycles = sum(load(step).total for step in alone) or 1.0
    starts = [end * cycles / seconds for end in before.ends] if before else [0.0] * workers
    loads = [shared(load(step), workers, step.parts, starts) for step in steps]
    barriers = sum(step.parts > 0 for step in steps) if workers > 1 and not (before and before.is_shared) else 0
    slowest = sum(each.slowest - max(starts) for each in loads)
    total = sum(each.total for each in loads)
    read = _from_levels(loads, least, machines.roofs(workers))
    times = {
        "work": seconds * slowest / cycles,
        "barriers": barriers * join_seconds(workers),
        **bounds(least, machines.roofs(workers)),
    }
    roof = max((name for name in times if name != "barriers"), key=lambda name: times[name])
    return Predicted(
        label=label,
        algorithm=algorithm,
        workers=workers,
        share=slowest / total if total else 1.0,
        balance=cycles / (workers * slowest) if slowest else 1.0,
        bytes=read,
        barriers=barriers,
        single=single,
        seconds=times[roof] + times["barriers"],
        bound_by="barriers" if times["barriers"] > times[roof] else roof,
        ends=tuple(end * seconds / cycles for end in loads[-1].ends),
        is_shared=barriers > 0 or bool(before and before.is_shared),
    )


def _from_levels(loads: Sequence[Shared], least: Least, roofs: Roofs) -> dict[str, float]:
    """Return bytes from each level: all reads of workers, less those that private and shared caches serve."""
    once = float(least.inputs + least.weights)
    left = max(sum(each.bytes for each in loads), once)
    found: dict[str, float] = {}
    for level in roofs.levels:
        found[level.name] = left
        left = max(0.0, (min(left, once) if level.name in SHARED else left) - level.size)
    return found


# --- networks -------------------------------------------------------------------------------------------------------


class _Unpacked(Packed):
    """Placeholder constants: nothing is packed, because nothing runs."""

    def get(self, array: np.ndarray, form: Any, make: Any) -> np.ndarray:
        return np.zeros(1, np.float32)


def network_on(path: Path, workers: int, machines: Machines) -> Iterator[Predicted]:
    """Predict every operator of a network on `workers` workers."""
    graph = read(path)
    sizes: dict[str, Any] = {name: value.shape for name, value in bound_inputs(graph, {}).items()}
    graph = prepared(graph, sizes, Rewriting())[0]
    targets = [Target(current(), count) for count in (1, workers)]
    alone, many = (Builder(lay_out(graph, target), target, _Unpacked()) for target in targets)  # nothing is compiled
    known = {work.node_plan.node.outputs: work for work in alone.operations}
    for members in many.groups:
        before = None
        for work in (many.operations[at] for at in members):
            found = _work_on(work, known.get(work.node_plan.node.outputs, work), workers, machines, before)
            if found is not None:
                yield found
            before = found


def _work_on(
    work: CompiledNode, alone: CompiledNode, workers: int, machines: Machines, before: Predicted | None
) -> Predicted | None:
    """Predict an operator of a network, concurrent with another one; None if its reference runs."""
    node, offer, single = work.node_plan.node, work.node_plan.offer, alone.node_plan.offer
    if offer is None or single is None:
        return None
    label, asked = node.origin or node.outputs[0], getattr(offer.detail, "problem", None)
    if isinstance(asked, ConvProblem):
        one = getattr(single.detail, "problem", asked)
        one = replace(one if isinstance(one, ConvProblem) else asked, threads=1)
        best = modelled_cost(one, _choice(one).candidate).estimate
        return convolution_on(label, asked, best, machines, workers, before)
    least = Least(0, work.inputs, work.weights, work.outputs)
    return _predicted(label, "", workers, alone.steps, work.steps, least, single.seconds, single.seconds, machines,
                      before)  # fmt: skip


# --- tables ---------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Predicted], workers: Sequence[int]) -> str:
    """Table with a row per operator: balance and predicted speed-up for each number of workers."""
    labels = list(dict.fromkeys(each.label for each in rows))
    found = {(each.label, each.workers): each for each in rows}
    body = []
    for label in labels:
        cells = [found.get((label, count)) for count in workers]
        last = next(each for each in reversed(cells) if each is not None)
        body.append(
            [label, *(f"{each.balance:.2f} {each.speed_up:.1f}" if each else "" for each in cells), last.bound_by]
        )
    heads = ["line", *(f"{count} workers" for count in workers), "bound by"]
    return "balance and predicted speed-up\n" + tabulate(body, heads, disable_numparse=True)


def networks_table(found: dict[str, list[Predicted]], workers: Sequence[int]) -> str:
    """Table with a row per network: predicted speed-up, share of time that workers wait, number of barriers."""
    body = []
    for name, rows in found.items():
        cells = []
        for count in workers:
            here = [each for each in rows if each.workers == count]
            if not here or name == "lines":
                continue
            total, single = sum(each.seconds for each in here), sum(each.single for each in here)
            waited = sum(each.seconds * (1 - min(1.0, each.balance)) for each in here) / total
            calls = sum(each.barriers for each in here)
            cells.append(f"{single / total:.1f} {waited:.0%} {calls}")
        if cells:
            body.append([name, *cells])
    heads = ["network", *(f"{count} workers" for count in workers)]
    return "predicted speed-up, share of time that workers wait, barriers\n" + tabulate(
        body, heads, disable_numparse=True
    )


if __name__ == "__main__":
    sys.exit(main())
