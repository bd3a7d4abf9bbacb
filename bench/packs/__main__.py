"""Build kernel packs, one file per architecture for all its classes of CPUs: `python -m bench.packs --help`.

Code is compiled and not run (`bench.packs.dry_run`), so any x86-64 machine can build all classes, Arm included.
Compiled kernels are stored, and an interrupted build continues where it stopped. Equal sources, versions of Numba and
networks give equal bytes on any machine.
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

from autotune.machine.cores import allowed_cores
from baselib.interpreter import python
from baselib.paths import VARIABLE
from bench.options import positive, words
from bench.packs.contents import CLOSED, TYPES
from bench.packs.features import environment, lacking
from bench.shapes import CANONICAL
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.kernel_body import KernelBody
from cpuconv.runtime.code.packs import active_pack, packing
from cpuconv.runtime.code.packs.cpu_classes import BY_NAME, CpuClass
from cpuconv.runtime.code.packs.stripped import SYMBOL, stripped
from cpuconv.runtime.code.sources import parsed, stamp
from cpuconv.runtime.target import target

NATIVE = "native"  # instead of the name of a class
SHAPES, NETWORKS = 20, 80
PASSED = ("lines", "types", "shapes", "networks", "drawn", "closed", "run")  # options of the compiling process
MAX_BYTES = 18_000_000  # maximum size of all packs, for a wheel of 20 MB at most


def main(argv: Sequence[str] | None = None) -> int:
    """Build the packs of the selected classes; return 1 if one failed, or if they are too large together."""
    options = parser().parse_args(argv)
    words(options.types, TYPES, "--types")
    words(options.closed, CLOSED, "--closed")
    failed, served = False, []
    asked = classes(options.classes)
    if not asked:
        print(
            f"no class of packs serves {target()[1]}: its kernels are compiled as they are asked for", file=sys.stderr
        )
        return 0
    for cpu in asked:
        if options.run and (lacks := lacking(cpu)):
            print(f"{cpu.name}: left out, as this CPU has no {', '.join(lacks)}", file=sys.stderr)
            failed |= bool(options.classes)
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
        packing.write(options.output / f"{machine}{active_pack.SUFFIX}", found)
    parsed.ship((path.read_bytes() for path in stamp.files().values()), options.output / parsed.NAME)
    total = sum(path.stat().st_size for path in options.output.iterdir())
    print(f"{options.output}: {total / 1e6:.2f} MB", file=sys.stderr)
    if total > MAX_BYTES:
        failed = True
        print(f"that is more than {MAX_BYTES / 1e6:.0f} MB", file=sys.stderr)
    return int(failed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.packs", description=__doc__.partition("\n")[0], allow_abbrev=False)
    names = f"comma-separated, of {', '.join(BY_NAME)}; or {NATIVE}, the one that serves this CPU best (all)"
    p.add_argument("--classes", default="", metavar="NAMES", help=names)
    p.add_argument("--lines", type=Path, default=CANONICAL, metavar="FILE", help=f"convolutions ({CANONICAL.name})")
    p.add_argument(
        "--types", default=",".join(TYPES), metavar="NAMES", help=f"types of convolutions ({','.join(TYPES)})"
    )
    p.add_argument("--shapes", type=int, default=SHAPES, help=f"convolutions drawn at random ({SHAPES})")
    p.add_argument("--drawn", type=int, default=NETWORKS, help=f"networks drawn at random ({NETWORKS})")
    closed = ",".join(CLOSED)
    p.add_argument("--closed", default=closed, metavar="NAMES", help=f"types of the closed kernel set ({closed})")
    p.add_argument("--networks", type=Path, metavar="DIR", help="ONNX files, as `python -m bench.networks` makes them")
    p.add_argument("--run", action="store_true", help="also run the compiled kernels of classes that this CPU supports")
    p.add_argument("--kept", type=Path, metavar="DIR", help="cache of kernels between builds (none)")
    p.add_argument("--jobs", type=positive, default=allowed_cores(), help="classes in parallel (number of cores)")
    p.add_argument("-o", "--output", type=Path, default=active_pack.FOLDER, metavar="DIR", help="(the package's)")
    return p


def classes(names: str) -> list[CpuClass]:
    """Return the classes that the option `--classes` names; empty for "native" if no class serves this CPU."""
    if names == NATIVE:
        return active_pack.fitting()[:1]
    return [BY_NAME[name] for name in words(names, BY_NAME, "--classes") or BY_NAME]


def compiled(cpu: CpuClass, options: argparse.Namespace) -> dict[str, bytes] | None:
    """Compile the kernels of a class; return None if that failed."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-packs-") as folder:
        kept = Path(folder) if options.kept is None else options.kept.absolute() / cpu.name
        kept.mkdir(parents=True, exist_ok=True)
        names = Path(folder) / "names.json"
        passed = json.dumps({name: getattr(options, name) for name in PASSED}, default=str)
        command = python("-m", "bench.packs.compiling", cpu.name, str(names), passed)
        environ = {**os.environ, **environment(cpu), VARIABLE: str(kept)}
        if subprocess.run(command, env=environ).returncode:
            print(f"{cpu.name}: failed", file=sys.stderr)
            return None
        kernels = collected(kept, json.loads(names.read_text()))
    alone, taken = len(packing.packed({cpu.name: kernels})), time.monotonic() - begun
    print(f"{cpu.name}: {len(kernels)} kernels, alone {alone / 1e6:.2f} MB, {taken:.0f} s", file=sys.stderr)
    return kernels


def collected(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the kernels of these names in a cache folder, in the form of packs."""
    files = {path.stem: path for path in folder.glob("kernels/*/*.o")}
    kernels = {}
    for name in names:
        body = checked_file.read(files[name])
        if body is None:
            raise OSError(f"{files[name]} is damaged")
        kernel = KernelBody.of(body)
        kernels[name] = kernel._replace(symbol=SYMBOL, code=stripped(kernel.code, kernel.symbol)).to_bytes()
    return kernels


if __name__ == "__main__":
    sys.exit(main())
