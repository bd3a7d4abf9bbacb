"""Build kernel packs, a file for all classes of CPUs of an architecture: `python -m bench.packs --help`.

Code of a class is compiled and not run (`bench.packs.dry`), so that any x86-64 machine builds all of them, those of Arm
too. What was compiled is kept, and an interrupted build goes on where it was. The same sources, versions of Numba and
networks give the same bytes, wherever they are built.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autotune.interpreter import python
from autotune.machine.cores import allowed_cores
from autotune.paths import VARIABLE
from autotune.wisdom.tiers import PINNED
from bench.compare import positive
from bench.packs.features import lacking, stated
from bench.packs.wanted import THREADS, TYPES
from bench.settings import words
from bench.shapes import CANONICAL
from cpuconv.runtime.code import checked_file, parsed, stamp, together
from cpuconv.runtime.code.packs import packing, serving
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME, CpuClass
from cpuconv.runtime.code.packs.stripped import SYMBOL, stripped

SHAPES, NETWORKS = 20, 80
PASSED = ("lines", "types", "shapes", "networks", "drawn")  # options of the process that compiles
# No packs, no wisdom, no other processes; and as many threads as are wanted at most, whatever the user says.
ALONE = {
    serving.VARIABLE: serving.OFF,
    PINNED: "",
    together.VARIABLE: "1",
    "NUMBA_NUM_THREADS": str(max(THREADS)),
}
MOST_BYTES = 12_000_000  # of all packs together, in a wheel


def main(argv: Sequence[str] | None = None) -> int:
    """Build the packs of the classes that were asked for; 1 if one could not be."""
    options = parser().parse_args(argv)
    asked = words(options.classes, BY_NAME, "--classes")
    words(options.types, TYPES, "--types")
    failed, served = False, []
    for cpu in [BY_NAME[name] for name in asked or BY_NAME]:
        if options.run and (lacks := lacking(cpu)):
            print(f"{cpu.name}: left out, as this CPU has no {', '.join(lacks)}", file=sys.stderr)
            failed |= bool(asked)
        else:
            served.append(cpu)
    parts: dict[str, dict[str, dict[str, bytes]]] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        all_kernels = list(pool.map(lambda cpu: compiled(cpu, options), served))
    for cpu, kernels in zip(served, all_kernels, strict=True):
        failed |= kernels is None
        if kernels is not None:
            parts.setdefault(cpu.machine, {})[cpu.name] = kernels
    options.output.mkdir(parents=True, exist_ok=True)
    for machine, found in parts.items():
        packing.write(options.output / f"{machine}{serving.SUFFIX}", found)
    parsed.ship((path.read_bytes() for path in stamp.files().values()), options.output / parsed.NAME)
    total = sum(path.stat().st_size for path in options.output.iterdir())
    print(f"{options.output}: {total / 1e6:.2f} MB", file=sys.stderr)
    if total > MOST_BYTES:
        print(f"that is more than {MOST_BYTES / 1e6:.0f} MB", file=sys.stderr)
    return int(failed)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.packs", description=__doc__.partition("\n")[0], allow_abbrev=False)
    p.add_argument("--classes", default="", metavar="NAMES", help=f"comma-separated, of {', '.join(BY_NAME)} (all)")
    p.add_argument("--lines", type=Path, default=CANONICAL, metavar="FILE", help=f"convolutions ({CANONICAL.name})")
    p.add_argument("--types", default=",".join(TYPES), metavar="NAMES", help=f"of convolutions ({','.join(TYPES)})")
    p.add_argument("--shapes", type=int, default=SHAPES, help=f"convolutions drawn at random ({SHAPES})")
    p.add_argument("--drawn", type=int, default=NETWORKS, help=f"networks drawn at random ({NETWORKS})")
    p.add_argument("--networks", type=Path, metavar="DIR", help="ONNX files, as `python -m bench.networks` makes them")
    p.add_argument("--run", action="store_true", help="what was compiled, too: for classes that this CPU can run")
    p.add_argument("--kept", type=Path, metavar="DIR", help="where kernels are kept between builds (nowhere)")
    p.add_argument(
        "--jobs", type=positive, default=allowed_cores(), help="classes at a time (the cores that there are)"
    )
    p.add_argument("-o", "--output", type=Path, default=serving.FOLDER, metavar="DIR", help="(the package's folder)")
    return p


def environment(cpu: CpuClass) -> dict[str, str]:
    """Variables of a process that compiles for a class."""
    return {"NUMBA_CPU_NAME": cpu.name, "NUMBA_CPU_FEATURES": stated(cpu), **ALONE}


def compiled(cpu: CpuClass, options: argparse.Namespace) -> dict[str, bytes] | None:
    """The kernels of a class; None if they could not be compiled."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-packs-") as folder:
        kept = Path(folder) if options.kept is None else options.kept.absolute() / cpu.name
        kept.mkdir(parents=True, exist_ok=True)
        names = Path(folder) / "names.json"
        passed = [f"--{name}={getattr(options, name)}" for name in PASSED if getattr(options, name) is not None]
        passed += ["--run"] if options.run else []
        command = python("-m", "bench.packs.compiling", cpu.name, str(names), *passed)
        environ = {**os.environ, **environment(cpu), VARIABLE: str(kept)}
        if subprocess.run(command, env=environ).returncode:
            print(f"{cpu.name}: failed", file=sys.stderr)
            return None
        kernels = collected(kept, json.loads(names.read_text()))
    alone, taken = len(packing.packed({cpu.name: kernels})), time.monotonic() - begun
    print(f"{cpu.name}: {len(kernels)} kernels, alone {alone / 1e6:.2f} MB, {taken:.0f} s", file=sys.stderr)
    return kernels


def collected(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The kernels of those names in a cache folder, as packs hold them."""
    files = {path.stem: path for path in folder.glob("kernels/*/*.o")}
    kernels = {}
    for name in names:
        body = checked_file.read(files[name])
        if body is None:
            raise OSError(f"{files[name]} is damaged")
        symbol, _, code = body.partition(b"\0")
        kernels[name] = SYMBOL.encode() + b"\0" + stripped(code, symbol.decode())
    return kernels


if __name__ == "__main__":
    sys.exit(main())
