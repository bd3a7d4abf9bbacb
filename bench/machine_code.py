"""Check whether a source change altered machine code: compare the kernels of two cache folders, byte by byte.

    CPUCONV_TEST_CACHE=BEFORE make test     # on the commit before the change; any program that compiles kernels will do
    CPUCONV_TEST_CACHE=AFTER make test      # on the commit after it
    python -m bench.machine_code BEFORE AFTER

The comparison uses the instructions and constants of each kernel; names of kernels and files do not count. It lists the
kernels of AFTER whose code is not in BEFORE, and then ends with code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm

from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.kernel_body import KernelBody

SECTIONS = (".text", ".ltext", ".rodata", ".lrodata")  # prefixes of section names; small and large code model


def code_of(file: Path) -> str | None:
    """Return a hash of the instructions and constants of a compiled kernel; None for a damaged file."""
    body = checked_file.read(file)
    if body is None:
        return None
    code = KernelBody.of(body).code
    found = hashlib.sha256()
    for section in llvm.ObjectFileRef.from_data(code).sections():
        name = (section.name() or b"").decode()
        if name.startswith(SECTIONS):
            found.update(f"{name} {section.size()} ".encode() + section.data())
    return found.hexdigest()


def kernels(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and hash of every kernel below a folder."""
    for file in sorted(folder.rglob("*.o")):
        code = code_of(file)
        if code is not None:
            yield file.stem.rpartition("-")[0].strip("-"), code


def compared(before: Path, after: Path) -> tuple[int, list[str]]:
    """Return the number of kernels of `after` whose code is also in `before`, and the names of the others."""
    known = {code for _, code in kernels(before)}
    if not known:
        raise SystemExit(f"{before} holds no compiled kernels")
    found = list(kernels(after))
    return sum(code in known for _, code in found), [name for name, code in found if code not in known]


def main() -> int:
    """Compare and print."""
    p = argparse.ArgumentParser(prog="bench.machine_code", description=__doc__.partition("\n")[0])
    for name in ("before", "after"):
        p.add_argument(name, type=Path, help="a cache folder")
    same, other = compared(**vars(p.parse_args()))
    print(f"{same} kernels have the machine code of before, {len(other)} do not")
    for name in sorted(set(other)):
        print(f"  {other.count(name)} of {name}")
    return bool(other)


if __name__ == "__main__":
    sys.exit(main())
