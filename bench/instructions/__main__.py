"""Count the instructions that a convolution executes on an emulated Arm core: `python -m bench.instructions`.

A plugin of QEMU counts them (`bench/instructions/plugin.c`). It needs a C compiler, Debian's package qemu-user, and the
root folder of aarch64 that `python tests/cpus.py --arm` makes. Kernels of cpuconv are compiled on this machine. Other
engines come from wheels for aarch64 in a folder:

    pip install --target FOLDER --no-deps --only-binary=:all: --implementation cp --python-version 3.11
        --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 ncnn MNN
    python -m bench.instructions --peers ncnn,mnn --wheels FOLDER [--match REGEX] [--cpu cortex-a76] [--json FILE]
    python -m bench.instructions --network FILE.onnx --precision float16 --peers onnxruntime --wheels FOLDER

One thread, batch 1, float32, each engine in its own layout. An output is one number of the result; the call is counted
too. Of a network, whose inputs have known sizes, all instructions count; `--precision` is that of cpuconv. Counts say
nothing of cycles. A pair of registers is two vector loads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from tabulate import tabulate

from baselib.interpreter import python
from bench import options, peers, shapes, simulated_machine
from bench.instructions import plugin
from bench.packs import dry_run
from bench.packs.features import environment
from bench.peers.base import Form
from bench.results import geomean
from cpuconv.kernels.binding.machine import Machine
from cpuconv.network.thread_count import random_array
from cpuconv.reading.onnx_reader import read
from cpuconv.runtime.code.packs.cpu_classes import ARM, BY_NAME

SHOWN = ("instructions", "vector_loads")  # of what the plugin counts; --json has everything
Counts = dict[str, dict[str, Any]]  # by the label of a line


def _convolutions(peer: Any, lines: Sequence[shapes.Line]) -> Iterator[tuple[Form, dict[str, Any]]]:
    """Prepare each line, and describe it."""
    random = np.random.default_rng(1)
    for line in lines:
        p = line.problem
        x, w, bias = (random.standard_normal(shape, np.float32) for shape in (p.in_shape, p.weight_shape, (p.k,)))
        form = peer.prepare(p, x, w, bias, threads=1)[-1]
        yield form, {"label": line.label, "outputs": p.n * p.k * p.oh * p.ow, "algorithm": form.algorithm}


def _network(peer: Any, path: Path) -> Iterator[tuple[Form, dict[str, Any]]]:
    """Prepare a network, and describe it."""
    graph = read(path)
    feed = {name: random_array(graph.value(name)) for name in graph.inputs}
    with tempfile.TemporaryDirectory() as folder:
        forms = peer.network(peer.converted(path, Path(folder)), feed, threads=1)
    yield forms[-1], {"label": path.stem, "outputs": 1, "algorithm": ""}


def count(forms: Iterable[tuple[Form, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the counts of prepared forms, with their descriptions; where this machine only compiles, nothing."""
    reading, writing = os.pipe()
    for form, described in forms:
        if platform.machine() == ARM:
            form.run()
            plugin.counted(form.run, writing)
            yield described | json.loads(os.read(reading, 1 << 12))


def _child(engine: str, cpu: str, pattern: str, network: Path | None, precision: str) -> None:
    described = BY_NAME[cpu]
    if platform.machine() != ARM:
        dry_run.begin(described)
    from cpuconv.isa import current

    with simulated_machine.simulating(Machine(current(), *described.caches)):
        own = {"strategy": "heuristic", "precision": precision} if engine == peers.CPUCONV else {}
        peer = peers.make(engine, **own)
        forms = _network(peer, network) if network else _convolutions(peer, shapes.load(pattern=pattern))
        for found in count(forms):
            print(json.dumps(found), flush=True)


def root() -> Path:
    """Return the root folder of aarch64 that the tests make.

    Raises
    ------
    plugin.Unavailable
        It was not made.
    """
    chosen = os.environ.get("CPUCONV_ARM_ROOT") or platformdirs.user_cache_dir("cpuconv-arm")
    folder = Path(chosen).absolute() / "aarch64"
    if not (folder / "stamp").exists():
        raise plugin.Unavailable(f"{folder} is not there: python tests/cpus.py --arm --slice makes it")
    return folder


def counts(engine: str, cpu: str, chosen: Sequence[str], emulator: Sequence[str], environ: Mapping[str, str]) -> Counts:
    """Return the counts of an engine, from an emulated process; this machine compiles cpuconv's kernels before.

    `chosen`: the arguments that select convolutions or a network.
    """
    command = ["-m", "bench.instructions", "--child", engine, "--cpu", cpu, *chosen]
    starts = [python()] if engine == peers.CPUCONV else []
    said = ""
    for start in (*starts, [*emulator, "-cpu", cpu, "-L", str(root()), str((root() / "usr/bin/python3").resolve())]):
        done = subprocess.run([*start, *command], env=dict(environ), stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"bench.instructions: {engine} failed")
        said = done.stdout
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {row.pop("label"): row for row in rows}


def table(found: Mapping[str, Counts], form: str) -> str:
    """Return a table of instructions and vector loads per output of each engine, with geometric means."""
    rows: list[list[str]] = []
    means: dict[tuple[str, str], list[float]] = {}
    for label in found[peers.CPUCONV]:
        row = [label, found[peers.CPUCONV][label]["algorithm"].partition("(")[0]]
        for kind in SHOWN:
            for engine, lines in found.items():
                figure = lines[label][kind] / lines[label]["outputs"]
                means.setdefault((kind, engine), []).append(figure)
                row.append(f"{figure:.3g}")
        rows.append(row)
    rows.append(["geometric mean", "", *(f"{geomean(figures):.3g}" for figures in means.values())])
    heads = [f"{kind.replace('_', ' ')}, {engine}" for kind in SHOWN for engine in found]
    return tabulate(rows, ["convolution", "algorithm", *heads], tablefmt=form, disable_numparse=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Count and print."""
    p = argparse.ArgumentParser(prog="bench.instructions", description=__doc__.partition("\n")[0])
    p.add_argument("--cpu", default="cortex-a76", choices=[n for n, c in BY_NAME.items() if c.machine == ARM])
    p.add_argument("--match", default="", help="regular expression of labels or problems of the canonical lines")
    p.add_argument("--network", type=Path, help="an ONNX file, instead of the canonical lines")
    p.add_argument("--precision", default="float32", help="precision of cpuconv's network (%(default)s)")
    p.add_argument("--peers", default="", help="other engines, of " + ", ".join(list(peers.PEERS)[2:]))
    p.add_argument("--wheels", type=Path, help="folder with the other engines' wheels for aarch64, unpacked")
    p.add_argument("--json", type=Path, help="file to write the counts to")
    p.add_argument("--markdown", action="store_true", help="print a table for a page")
    p.add_argument("--child", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    if args.child:
        _child(args.child, args.cpu, args.match, args.network, args.precision)
        return 0
    found: dict[str, Counts] = {}
    chosen = ["--match", args.match, "--precision", args.precision]
    chosen += ["--network", str(args.network.absolute())] if args.network else []
    try:
        with tempfile.TemporaryDirectory() as folder:
            emulator = plugin.build(Path(folder))
            project = Path(__file__).resolve().parents[2]
            paths = [str(project), *([str(args.wheels.absolute())] if args.wheels else [])]
            environ = {**os.environ, **environment(BY_NAME[args.cpu]), "PYTHONPATH": os.pathsep.join(paths)}
            for engine in (peers.CPUCONV, *filter(None, args.peers.split(","))):
                found[engine] = counts(engine, args.cpu, chosen, emulator, environ)
    except plugin.Unavailable as missing:
        raise SystemExit(f"bench.instructions: {missing}") from None
    print(table(found, "pipe" if args.markdown else "simple"))
    options.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
