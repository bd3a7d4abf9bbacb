"""Convolutions and networks for which the kernels of a pack are compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.machine.device import microarchitecture
from bench.shapes import CANONICAL
from bench.shapes.drawn import draw
from cpuconv.conv.choice import auto_settings, model, select, tuned
from cpuconv.conv.choice.model import AUTO, Limits
from cpuconv.conv.recipe import Candidate
from cpuconv.conv.session import TABLES
from cpuconv.errors import CpuconvError
from cpuconv.isa import current, table
from cpuconv.kernels.binding.machine import Machine
from cpuconv.kernels.products.closed import closed_set
from cpuconv.kernels.products.closed.closed_tile import ClosedTile
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading import sources
from cpuconv.problem.types import Types
from cpuconv.runtime.code.packs.cpu_classes import fitting
from cpuconv.runtime.target import target
from cpuconv.runtime.threads import maximum_threads

SEED = 37
THREADS = (1, 2, 4)
TYPES = {name: Types.parse(name) for name in ("f32", "bf16", "u8")}
CLOSED = {**TYPES, "s8": Types.parse("s8"), "u8:f32": Types.parse("u8:s8:f32")}  # types of closed GEMM strips
PRECISIONS = ("float32", "bfloat16")  # precisions of networks; int8 files need no option
NARROW = ("bfloat16", "int8")  # further precisions of random networks
BF16 = frozenset(("avx512bf16", "bf16"))  # without these features bfloat16 is converted, and slower than float32


def threads() -> list[int]:
    """Return the numbers of threads for which networks are compiled, at most the cores of this machine."""
    return [each for each in THREADS if each <= maximum_threads()]


def computes(name: str, features: Set[str]) -> bool:
    """Whether a CPU with these features has instructions for a type or a precision."""
    return not name.startswith("bf") or not BF16.isdisjoint(features)


def convolutions(lines: Path, drawn: int, types: Sequence[Types]) -> Iterator[tuple[ConvProblem, Candidate]]:
    """Yield the convolutions of a file and random ones with the model's candidates, and those of shipped tables."""
    known = [problem for problem, *_ in sources.load(str(lines))]
    for problem in (*known, *draw(drawn, SEED)):
        for each in types:
            for threads in THREADS:
                yield from _chosen(replace(problem, types=each, threads=threads))
    if lines == CANONICAL:
        yield from _tabled()


def closed_strips(names: Sequence[str], features: Set[str]) -> list[ClosedTile]:
    """Return every GEMM strip of the closed set, for networks with open sizes, in the given types."""
    asked = (CLOSED[name] for name in names if computes(name, features))
    return list(dict.fromkeys(tile for types in asked for tile in closed_set.strips(current(), types)))


def _chosen(problem: ConvProblem) -> Iterator[tuple[ConvProblem, Candidate]]:
    """Yield the model's selections in the problem's layouts, and in the layouts that it selects."""
    for layouts in ((problem.in_layout, problem.out_layout), (AUTO, AUTO)):
        try:
            asked = auto_settings.resolve_layouts(problem, *layouts, Limits())
            model.check_types(asked)
            yield asked, select.untuned(asked, Limits()).candidate
        except CpuconvError:  # types or layouts that this CPU does not support
            continue


def _tabled() -> Iterator[tuple[ConvProblem, Candidate]]:
    """Yield the fastest candidate of each problem in the tables of this class's devices."""
    for _, _, rows in _tables():
        yield from _fastest(rows)


def devices() -> dict[str, Machine]:
    """Return the devices of this class of CPUs with a shipped table: machines by key."""
    return {key: _machine(fields) for key, fields, _ in _tables()}


def _machine(fields: Mapping[str, Any]) -> Machine:
    caches = {name.lower(): size for name, size in fields["caches"].items()}
    return Machine(table.isa_of(fields["cpu_name"], fields["features"]), caches["l1d"], caches["l2"], caches["l3"])


def _tables() -> Iterator[tuple[str, Mapping[str, Any], Iterator[dict]]]:
    """Yield key, fields and rows of each device of this class of CPUs in shipped tables."""
    for path in sorted(TABLES.glob("*.json")):
        document = json.loads(path.read_text())
        columns = document["columns"]["rows"]
        for device in document["devices"]:
            if _serves(device["fields"]):
                yield path.stem, device["fields"], (dict(zip(columns, row, strict=True)) for row in device["rows"])


def _serves(fields: Mapping[str, str]) -> bool:
    """Whether this CPU's class is the first choice for a device."""
    name = microarchitecture(fields["cpu_name"], fields["features"])
    there = (feature[1:] for feature in fields["features"].split(",") if feature.startswith("+"))
    return [each.name for each in fitting(fields["machine"], name, there)][:1] == [target()[1]]


def _fastest(rows: Iterator[dict]) -> Iterator[tuple[ConvProblem, Candidate]]:
    ok = sorted((row for row in rows if row["state"] == "ok" and row["score"]), key=lambda row: row["score"])
    done = set()
    for row in ok:
        if row["problem"] in done:
            continue
        try:
            problem = ConvProblem.parse(row["problem"])
            candidate = tuned.named(problem, row["candidate"])
        except CpuconvError:
            continue
        if candidate is not None:
            done.add(row["problem"])
            yield problem, candidate


def networks(folder: Path) -> list[Path]:
    """Return the files of networks in a folder, in a fixed order."""
    return sorted(folder.glob("*.onnx"))
