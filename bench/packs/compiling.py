"""A process that compiles the kernels of a pack: `python -m bench.packs` starts one for each class of CPUs.

Numba's environment variables name the CPU, CPUCONV_CACHE_DIR the folder of kernels. The names of all requested kernels
are written to a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cpuconv
from autotune.machine import device
from bench import simulated_machine
from bench.packs import closed_sets, contents, dry_run, orders
from cpuconv.cli.feeds import drawn
from cpuconv.conv import session
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.errors import CpuconvError
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import Machine
from cpuconv.kernels.products.closed.closed_strip import closed_strip
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.runtime.code.cache import recording_names
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME

_STRATEGY: Any = "heuristic"  # independent of tuned results on the building machine
_SAY_SECONDS = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, and write the names.

    Arguments: the name of a class, the file of the names, and the options `PASSED` of `bench.packs` as JSON.
    """
    name, names_file, stated = argv or sys.argv[1:]
    cpu, options = BY_NAME[name], argparse.Namespace(**json.loads(stated))
    warnings.simplefilter("ignore", cpuconv.CpuconvWarning)
    if not options.run:
        dry_run.begin(cpu)
    orders.begin(cpu)
    levels = dict(zip(device.DEFAULT_CACHES, cpu.caches, strict=True))
    vars(device)["caches_of"] = lambda: levels  # caches of the class, not of the building machine
    features = cpu.features
    closed_types = options.closed.split(",") if options.closed else []
    calls: list[Callable[[], object]] = [ref.entry for ref in closed_sets.float32(current()) if closed_types]
    calls += [partial(kernel.entry, tile) for kernel, tile in closed_sets.drivers(current()) if closed_types]
    calls += [
        *_convolutions(options, features),
        *(_networks(Path(options.networks), features) if options.networks else ()),
    ]
    calls += _drawn(options.drawn, features) if options.drawn else ()
    closed = contents.closed_strips(closed_types, features)
    calls += [partial(closed_strip.entry, tile) for tile in closed]
    said = 0.0
    with recording_names() as names:
        for number, call in enumerate(calls):
            call()
            if time.monotonic() > said + _SAY_SECONDS:
                said = time.monotonic()
                text = f"{name}: {number + 1} of {len(calls)}, {len(names)} kernels"
                print(text, file=sys.stderr, flush=True)
    Path(names_file).write_text(json.dumps(sorted(names)))
    return 0


def _convolutions(options: argparse.Namespace, features: Set[str]) -> Iterator[Callable[[], None]]:
    types = [contents.TYPES[name] for name in options.types.split(",") if contents.computes(name, features)]
    for problem, candidate in contents.convolutions(Path(options.lines), options.shapes, types):
        yield partial(_assembled, problem, candidate)
        if problem.threads == 1 and problem.types == ALL_F32 and problem.in_layout == problem.out_layout == "NCHW":
            yield partial(_called, problem, _STRATEGY)
            for key, machine in contents.devices().items():
                yield partial(_on, key, machine, partial(_called, problem))


def _assembled(problem: ConvProblem, candidate: Candidate) -> None:
    for step in assemble(problem, candidate).steps:
        step.compile()


def _on(key: str, machine: Machine, call: Callable[[], None]) -> None:
    """Make a call as on a device with a shipped table, which then decides."""
    here, session.current = session.current, session.Session(persistent=False, device=key)
    try:
        with simulated_machine.simulating(machine):
            call()
    finally:
        session.current = here


def _called(problem: ConvProblem, strategy: Any = "cached") -> None:
    """Call the public function, which also compiles the kernels for fingerprints, packing and launching."""
    x = np.ones((problem.n, problem.c, problem.h, problem.w), np.float32)
    w = np.ones((problem.k, problem.c // problem.groups, problem.r, problem.s), np.float32)
    top, bottom, left, right = problem.pads
    options: dict[str, Any] = {"stride": problem.stride, "dilation": problem.dilation, "groups": problem.groups}
    cpuconv.conv2d(x, w, padding=((top, bottom), (left, right)), threads=1, strategy=strategy, **options)


def _networks(folder: Path, features: Set[str]) -> Iterator[Callable[[], None]]:
    precisions = [each for each in contents.PRECISIONS if contents.computes(each, features)]
    for path in contents.networks(folder):
        for precision in precisions if ".int8" not in path.suffixes else precisions[:1]:
            for threads in contents.threads():
                yield partial(_network, path, precision, threads)
                for key, machine in contents.devices().items():
                    yield partial(_on, key, machine, partial(_tabled_network, path, precision, threads))


def _tabled_network(path: Path, precision: Any, threads: int) -> None:
    with suppress(CpuconvError):  # already reported by `_network`
        cpuconv.compile(path, threads=threads, precision=precision)


def _network(path: Path, precision: Any, threads: int) -> None:
    try:
        model = cpuconv.compile(path, threads=threads, strategy=_STRATEGY, precision=precision)
    except CpuconvError as error:
        print(f"{path.name} is left out: {error}", file=sys.stderr)
        return
    feed = drawn(model.inputs, {}, 0)
    model.run(feed)
    if threads == 1:
        with tempfile.TemporaryDirectory() as saved:
            model.save(Path(saved) / "model")
            cpuconv.load(Path(saved) / "model", threads=threads).run(feed)


def _drawn(count: int, features: Set[str]) -> Iterator[Callable[[], None]]:
    """Yield random networks: by the model, by shipped tables, and every other one in each supported narrow type."""
    narrow = [each for each in contents.NARROW if contents.computes(each, features)]
    for number in range(count):
        yield partial(_drawn_network, number, strategy=_STRATEGY)
        for key, machine in contents.devices().items():
            yield partial(_on, key, machine, partial(_drawn_network, number))
        for precision in narrow if number % 2 == 0 else ():
            yield partial(_drawn_network, number, precision, _STRATEGY)


def _drawn_network(number: int, precision: Any = "float32", strategy: Any = "cached") -> None:
    from bench.packs import quantised_networks, random_networks  # imported here: they need the package onnx

    model = random_networks.drawn(number, contents.SEED)
    if precision == "int8":
        model, precision = quantised_networks.quantised(model), "float32"
    cpuconv.compile(model, threads=1, strategy=strategy, precision=precision)


if __name__ == "__main__":
    sys.exit(main())
