"""Time the inner loops alone, on one thread, against the FMA peak of the same run: `python -m bench.kernels --help`."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from tabulate import tabulate

from autotune.machine.device import fingerprint
from bench import options
from bench.loops import Loop, depthwise_loops, gemm_loops, peak_loop, time_all, winograd_loops
from bench.report import NOTHING
from bench.settings import machine_name
from cpuconv.isa import Isa, current

Makers = Iterator[tuple[str, Callable[[], list[Loop]]]]
Figures = Mapping[str, tuple[str, str]]  # by name in JSON: header and format of the table
SPEED: Figures = {"gflops": ("GFLOP/s", "{:.1f}"), "peak_share": ("of peak", "{:.0%}")}
CYCLES: Figures = {"ns": ("ns", "{:.1f}"), "cycles": ("cycles", "{:.0f}"), "cycles_a_vector": ("a vector", "{:.2f}")}


class Family(NamedTuple):
    """Loops of one table, with a row per tile and its figures for each case."""

    title: str
    loops: Callable[[Isa], Makers]
    figures: Figures


FAMILIES: dict[str, Family] = {
    "gemm": Family("GEMM tiles: weight vectors x pixels; operands in L1, weights streaming from L2", gemm_loops, SPEED),
    "winograd": Family("Winograd transforms: a tile of one channel block", winograd_loops, CYCLES),
    "depthwise": Family("Depthwise tiles: kernel, stride, rows x columns of outputs", depthwise_loops, SPEED),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Time the loops and print a table per family; return 0 on success, 1 if no tile has the given names."""
    args = parser().parse_args(argv)
    console = Console(stderr=True)
    isa = current()
    makers = [
        (family, make)
        for family in options.words(args.families, FAMILIES, "--families")
        for name, make in FAMILIES[family].loops(isa)
        if not args.tiles or name in args.tiles
    ]
    if not makers:
        console.print(f"No tile is named {' or '.join(args.tiles)}.", highlight=False)
        return 1
    peak = peak_loop(isa)
    made = [(family, loop) for family, make in track(makers, "compiling", console=console) for loop in make()]
    loops = [peak, *(loop for _, loop in made)]
    time_all(loops, args.rounds, args.seconds_per_sample, lambda rounds: track(rounds, "timing", console=console))
    data = to_dict(isa, peak, made)
    print(report(data))
    options.write_json(args.json, data)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("kernels", __doc__, "--rounds", "--json", rounds=41)  # the fastest round counts
    p.add_argument("--families", default=",".join(FAMILIES), help="comma-separated (%(default)s)")
    p.add_argument("--tiles", nargs="+", default=(), metavar="NAME", help="only these tiles, such as 4x6 or 'F(4,3)'")
    p.add_argument("--seconds-per-sample", type=float, default=5e-4, help="time of each run (0.0005)")
    return p


def to_dict(isa: Isa, peak: Loop, made: Sequence[tuple[str, Loop]]) -> dict[str, Any]:
    """Return all figures as plain data. Cycles are those of the clock derived from the FMA peak."""
    gflops = peak.flops / peak.seconds * 1e-9
    ghz = gflops / (2 * isa.lanes * isa.fma_rate)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": machine_name(),
        "device": fingerprint().key,
        "isa": isa.name,
        "peak_gflops": gflops,
        "ghz": ghz,
        "loops": [{"family": family, **_record(loop, gflops, ghz)} for family, loop in made],
    }


def _record(loop: Loop, peak: float, ghz: float) -> dict[str, Any]:
    """Return the figures of a loop per tile: nanoseconds, cycles; speed of FMA loops; cycles per moved vector."""
    cycles = loop.seconds * 1e9 * ghz
    record: dict[str, Any] = {"tile": loop.tile, "case": loop.case, "ns": loop.seconds * 1e9, "cycles": cycles}
    if loop.flops:
        gflops = loop.flops / loop.seconds * 1e-9
        record |= {"gflops": gflops, "peak_share": gflops / peak}
    if loop.vectors:
        record |= {"vectors": loop.vectors, "cycles_a_vector": cycles / loop.vectors}
    return record


def report(data: dict[str, Any]) -> str:
    """Return the tables, and the peak to which the shares refer."""
    parts = [
        f"{data['cpu']}, {data['isa']}, one thread: FMA peak {data['peak_gflops']:.1f} GFLOP/s, which is a clock of "
        f"{data['ghz']:.2f} GHz."
    ]
    for name, family in FAMILIES.items():
        records = [record for record in data["loops"] if record["family"] == name]
        if records:
            parts += [f"{family.title}.", _table(records, family.figures)]
    return "\n\n".join(parts) + "\n"


def _table(records: Sequence[dict[str, Any]], figures: Figures) -> str:
    cases = list(dict.fromkeys(record["case"] for record in records))
    rows: dict[str, dict[str, list[str]]] = {}
    for record in records:
        texts = [text.format(record[name]) for name, (_, text) in figures.items()]
        rows.setdefault(record["tile"], {})[record["case"]] = texts
    missing = [NOTHING] * len(figures)
    body = [[tile, *(text for case in cases for text in row.get(case, missing))] for tile, row in rows.items()]
    headers = ["tile", *(f"{case}: {header}" for case in cases for header, _ in figures.values())]
    right = ("left", *["right"] * (len(headers) - 1))
    return tabulate(body, headers, disable_numparse=True, colalign=right)


if __name__ == "__main__":
    sys.exit(main())
