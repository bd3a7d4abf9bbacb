"""Share of a core's bound that micro-kernels for Arm reach, by static models: `python -m bench.mca`.

The machine code is generated here, whatever this machine is, and read by llvm-mca and by the model of an in-order core
(`bench/mca/cores.py`). All loads are assumed to hit L1. Nothing is run.

    python -m bench.mca [--cpus cortex-a76,cortex-a55] [--match depthwise] [--json FILE] [--markdown]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from baselib.interpreter import python
from bench.mca import cores
from bench.mca.assembly import body_of, count_arithmetic, vector_loads, vector_spills
from bench.packs import dry_run
from bench.packs.features import environment
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME

COLUMNS = ("share", "arithmetic", "instructions", "loads", "spills")


def analysed(core: cores.Core, match: str) -> Iterator[dict[str, Any]]:
    """Yield the figures of each micro-kernel whose name matches a pattern; this process must compile for the core."""
    from bench.mca.micro_kernels import every
    from cpuconv.isa import current

    for name, kernel, tile in every(current()):
        if not re.search(match, name):
            continue
        body = body_of(kernel.assembly(tile))
        vectors = count_arithmetic(body)
        yield {
            "loop": name,
            "share": vectors / core.fma_rate / core.cycles(body),
            "arithmetic": vectors,
            "instructions": len(body),
            "loads": vector_loads(body),
            "spills": len(vector_spills(body)),
        }


def _child(cpu: str, match: str) -> None:
    dry_run.begin(BY_NAME[cpu])
    for row in analysed(cores.BY_CLASS[cpu], match):
        print(json.dumps(row), flush=True)


def figures_of(cpu: str, match: str = "") -> list[dict[str, Any]]:
    """Return the figures of a class of CPUs, from a process that compiles for it."""
    command = python("-m", "bench.mca", "--child", cpu, "--match", match)
    done = subprocess.run(command, env={**os.environ, **environment(BY_NAME[cpu])}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(argv: Sequence[str] | None = None) -> int:
    """Analyse and print."""
    p = argparse.ArgumentParser(prog="bench.mca", description=__doc__.partition("\n")[0])
    p.add_argument("--cpus", default=",".join(cores.BY_CLASS), help="classes of CPUs, of " + ", ".join(cores.BY_CLASS))
    p.add_argument("--match", default="", help="only micro-kernels whose name matches this regular expression")
    p.add_argument("--json", type=Path, help="file to write the figures to")
    p.add_argument("--markdown", action="store_true", help="print tables for a page")
    p.add_argument("--child", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    if args.child:
        _child(args.child, args.match)
        return 0
    cpus = args.cpus.split(",")
    if unknown := [cpu for cpu in cpus if cpu not in cores.BY_CLASS]:
        p.error(f"--cpus: must be of {', '.join(cores.BY_CLASS)}, got {', '.join(unknown)}")
    try:
        cores.tool()
    except cores.Unavailable as missing:
        raise SystemExit(f"bench.mca: {missing}") from None
    found = {}
    for cpu in cpus:
        found[cpu] = figures_of(cpu, args.match)
        rows = [[row["loop"], f"{row['share']:.0%}", *(row[name] for name in COLUMNS[1:])] for row in found[cpu]]
        print(f"\n{cores.BY_CLASS[cpu].name}\n")
        print(tabulate(rows, ["loop", *COLUMNS], tablefmt="pipe" if args.markdown else "simple"), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
