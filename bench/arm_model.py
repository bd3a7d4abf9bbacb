"""Time of a network on a described Arm board, by models alone: `python -m bench.arm_model FILE.onnx`.

The planner selects layouts and algorithms as on that core. The time of an operator is the larger of two:

- cycles of its loops, from the cost models that selected it (`efficiency` of the core's row in `isa/table.py` is the
  share that `bench.mca` finds), and cycles of a function behind a convolution, such as SiLU, by llvm-mca;
- bytes of its operands that no cache holds, at the memory's peak rate, which all threads share.

A call that several threads share adds the time to start and join them. Nothing is run.

    python -m bench.arm_model FILE.onnx [--board pi5] [--threads 1,4] [--precision float16] [--json FILE]
    python -m bench.arm_model FILE.onnx FILE.onnx --measure      this machine: the model's time over the measured one
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from autotune.machine.device import microarchitecture
from baselib.interpreter import python
from bench import options, simulated_machine
from bench.mca import assembly, cores
from bench.packs import dry_run
from bench.packs.features import environment
from bench.results import geomean
from cpuconv.elements import F32, Element
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME


@dataclass(frozen=True)
class Board:
    """A computer: its name, the class of its cores, their number, clock (Hz), and peak bytes a second of memory."""

    name: str
    cpu: str
    cores: int
    clock: float
    memory: float


# Source: Raspberry Pi's product brief (LPDDR4X-4267, 32 bits).
BOARDS = {"pi5": Board("Raspberry Pi 5", "cortex-a76", 4, 2.4e9, 17.1e9)}
FUNCTIONS = "functions of convolutions"  # a part of the convolutions' time
ROUNDS = 7  # timed runs of a network
MAX_PARTS = 6  # kinds of operators that are printed
Parts = dict[str, float]  # seconds by kind of operator


class Described:
    """The models of a computer; this process must compile for it.

    Parameters
    ----------
    clock : float
        Cycles per second.
    memory : float
        Bytes per second from memory for all threads together.
    cycles : Callable
        Cycles per turn of a loop, given as lines of assembly.
    """

    def __init__(self, clock: float, memory: float, cycles: Callable[[Sequence[str]], float]) -> None:
        self.clock, self.memory, self.cycles = clock, memory, cycles

    @functools.cache  # noqa: B019 - one object per process
    def function_cycles(self, activation: tuple[Any, ...] | None, kind: str, x: Element, y: Element) -> float:
        """Cycles of an activation per vector of float32, in the epilogue of a tile of a dot-product kind."""
        if activation is None:
            return 0.0
        from bench.mca.micro_kernels import gemm_strip, gemm_tile
        from cpuconv.isa import current

        v, n = 2, current().pixels[1]
        with_it, without = (
            self.cycles(max(assembly.blocks(gemm_strip.assembly(tile)), key=assembly.count_arithmetic))
            for tile in (
                gemm_tile(current(), v, n, activation=each, product=kind, x=x, y=y) for each in (activation, None)
            )
        )
        return max(0.0, with_it - without) / (v * n)

    def parts(self, path: Path, threads: int, precision: str) -> Parts:
        """Seconds of the operators of a network, by kind, on so many threads."""
        from cpuconv.conv.choice.target import Target
        from cpuconv.isa import current
        from cpuconv.kernels.binding.machine import machine
        from cpuconv.kernels.binding.processor import join_seconds
        from cpuconv.network.selection.layout import lay_out
        from cpuconv.network.sizes.prepared import Rewriting, prepared
        from cpuconv.reading.onnx_reader import read

        isa, model = current(), read(path)
        shapes = {name: tuple(_sizes(model.value(name).shape)) for name in model.inputs}
        target = Target(isa, threads, "heuristic", precision=precision)
        planned = lay_out(prepared(model, shapes, Rewriting()).graph, target)
        found: Parts = {FUNCTIONS: 0.0}
        for each in planned.nodes:
            seconds = float(each.seconds) * isa.frequency / self.clock
            detail = None if each.offer is None else each.offer.detail
            problem = getattr(detail, "problem", None)
            if problem is not None:
                vectors = math.ceil(problem.k / isa.lanes) * problem.n * problem.oh * problem.ow
                cycles = vectors * self.function_cycles(problem.activation, *_tile_of(detail))
                functions = cycles / self.clock / threads
                found[FUNCTIONS] += functions
                seconds += functions
            moved = _moved(planned.graph, each.node, each.offer)
            if seconds:  # else a view, which moves nothing
                floor = moved / self.memory if moved > machine().l3 / 2 else 0.0
                op = each.node.op
                found[op] = found.get(op, 0.0) + max(seconds, floor) + join_seconds(threads)
        return found


def _tile_of(chosen: Any) -> tuple[str, Element, Element]:
    """Dot-product kind, and elements read and stored, of the tiles behind which an activation is computed."""
    types = chosen.problem.types
    half_sums = chosen.choice.candidate.solver.name.endswith("_f16")
    return ("fmla_f16", types.x, types.y) if half_sums else ("fma", F32, types.y)


def _moved(graph: Any, node: Any, offer: Any) -> float:
    """Bytes of the operands of a node, in the types in which its offer stores them."""
    from cpuconv.kernels.binding.tensor_view import stored_as

    forms = (*offer.inputs, *offer.outputs) if offer is not None else ()
    values = ((name, graph.value(name)) for name in (*node.inputs, *node.outputs) if name)
    stored = dict(zip((*node.inputs, *node.outputs), forms, strict=False))
    return sum(
        value.nbytes * stored_as(stored.get(name, ""), value.dtype).itemsize / value.dtype.itemsize
        for name, value in dict(values).items()
    )


def total(parts: Parts) -> float:
    """Seconds of a run."""
    return sum(seconds for name, seconds in parts.items() if name != FUNCTIONS)


def _sizes(shape: Sequence[Any] | None) -> Sequence[int]:
    if shape is None or any(not isinstance(size, int) for size in shape):
        raise SystemExit("bench.arm_model: the inputs' sizes must be known")
    return shape


def _child(board: Board, files: Sequence[Path], threads: Sequence[int], precision: str) -> None:
    described = BY_NAME[board.cpu]
    dry_run.begin(described)
    from cpuconv.isa import current
    from cpuconv.kernels.binding.machine import Machine

    models = Described(board.clock, board.memory, cores.BY_CLASS[board.cpu].cycles)
    with simulated_machine.simulating(Machine(current(), *described.caches)):
        for path in files:
            for count in threads:
                parts = models.parts(path, count, precision)
                print(json.dumps({"network": path.stem, "threads": count, "parts": parts}))


def modelled(
    board: Board, files: Sequence[Path], threads: Sequence[int], precision: str = "float32"
) -> list[dict[str, Any]]:
    """Return the parts of each network and number of threads, from a process that compiles for the board."""
    chosen = ["--child", "--precision", precision, "--threads", ",".join(map(str, threads)), *map(str, files)]
    key = next(name for name, each in BOARDS.items() if each == board)
    command = python("-m", "bench.arm_model", "--board", key, *chosen)
    done = subprocess.run(
        command, env={**os.environ, **environment(BY_NAME[board.cpu])}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit("bench.arm_model: the process that compiles for the board failed")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measured(files: Sequence[Path], threads: int) -> list[dict[str, Any]]:
    """Return modelled and measured seconds of each network on this machine."""
    import cpuconv
    from cpuconv.isa import current
    from cpuconv.network.thread_count import random_array
    from cpuconv.reading.onnx_reader import read
    from cpuconv.runtime.target import target

    _, cpu, features = target()
    name = microarchitecture(cpu, features)
    cycles = functools.partial(cores.by_mca, cpu=name, triple=platform.machine())
    models, found = Described(current().frequency, math.inf, cycles), []
    for path in files:
        graph = read(path)
        feed = {name: random_array(graph.value(name)) for name in graph.inputs}
        model = cpuconv.compile(path, threads=threads, strategy="heuristic")
        took = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            model.run(feed)
            took.append(time.perf_counter() - begun)
        by_model = total(models.parts(path, threads, "float32"))
        found.append({"network": path.stem, "model": by_model, "measured": statistics.median(took[1:])})
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the modelled times, or compare them with measured ones."""
    p = argparse.ArgumentParser(prog="bench.arm_model", description=__doc__.partition("\n")[0])
    p.add_argument("files", nargs="+", type=Path, help="ONNX files")
    p.add_argument("--board", default="pi5", choices=BOARDS)
    p.add_argument("--threads", default="1,4", help="numbers of threads (%(default)s)")
    p.add_argument("--precision", default="float32", help="precision of the networks (%(default)s)")
    p.add_argument("--measure", action="store_true", help="measure on this machine, with the first number of threads")
    p.add_argument("--json", type=Path, help="file to write the figures to")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    threads, board = [int(each) for each in args.threads.split(",")], BOARDS[args.board]
    if args.child:
        _child(board, args.files, threads, args.precision)
        return 0
    try:
        cores.tool()
    except cores.Unavailable as missing:
        raise SystemExit(f"bench.arm_model: {missing}") from None
    if args.measure:
        found = measured(args.files, threads[0])
        ratios = [row["model"] / row["measured"] for row in found]
        rows = [
            [row["network"], *(f"{1e3 * row[name]:.1f}" for name in ("model", "measured")), f"{ratio:.2f}"]
            for row, ratio in zip(found, ratios, strict=True)
        ]
        rows.append(["geometric mean", "", "", f"{geomean(ratios):.2f}"])
        print(tabulate(rows, ["network", "model, ms", "measured, ms", "model ÷ measured"], tablefmt="pipe"))
    else:
        found = modelled(board, args.files, threads, args.precision)
        for row in found:
            longest = sorted(row["parts"].items(), key=lambda part: -part[1])[:MAX_PARTS]
            seconds = total(row["parts"])
            print(f"{board.name}, {row['network']}, {row['threads']} threads: {1e3 * seconds:.1f} ms, by a model")
            print("  " + ", ".join(f"{name} {1e3 * each:.1f}" for name, each in longest))
    options.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
