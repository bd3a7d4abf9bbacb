"""Fuzz the readers of what others wrote, guided by coverage: `python tests/fuzz.py --seconds 600`.

Each target of `support.damage.fuzz_targets` runs in a process of its own, for its part of the time, from seeds that are
made first. Ends with code 1, and the file that did it, where a reader raised something else than its errors, took more
than five seconds or more than a gigabyte; with code 77 where the package atheris cannot be had.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from baselib.interpreter import python

PACKAGES = ["autotune", "baselib", "cpuconv", "layouts"]  # whose branches count
KERNELS = ["functions", "isa", "kernels", "memory", "runtime", "solvers"]  # rooms of cpuconv whose code Numba compiles
_NONE = 77
_SLOW, _MEGABYTES, _LONGEST = 5, 1024, 1 << 16  # seconds, memory and bytes of one file
_CRASHES = Path(tempfile.gettempdir(), "cpuconv-fuzz")
_SHARES = {"onnx": 0.4, "saved": 0.3, "wisdom": 0.1, "problem": 0.05, "operands": 0.15}
_DONE = re.compile(r"Done (\d+) runs in")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="of all targets together (600)")
    parser.add_argument("--only", choices=_SHARES, help="this target alone")
    parser.add_argument("--corpus", type=Path, help="folder for seeds and what is found, to go on from (a new one)")
    parser.add_argument("--crashes", type=Path, default=_CRASHES, help=f"folder for files that are wrong ({_CRASHES})")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn; 0: another one each time")
    parser.add_argument("--file", type=Path, help="give this file to the target of --only, and end")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.file is not None:
        from support.damage.fuzz_targets import TARGETS

        TARGETS[options.only].read(options.file.read_bytes())
        return 0
    if options.child:
        _fuzz(options)
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("NOT FUZZED: the package atheris cannot be imported; `pip install atheris` where it has a wheel.")
        return _NONE
    with tempfile.TemporaryDirectory() as scratch:
        options.corpus = options.corpus or Path(scratch)
        names = [options.only] if options.only else list(_SHARES)
        return max(_run(name, options) for name in names)


def _run(name: str, options: argparse.Namespace) -> int:
    """One target in a process of its own."""
    seconds = options.seconds if options.only else max(1, round(options.seconds * _SHARES[name]))
    command = [*python(), __file__, "--child", "--only", name, "--seconds", str(seconds)]
    command += ["--corpus", str(options.corpus), "--crashes", str(options.crashes), "--seed", str(options.seed)]
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace")
    runs = _DONE.search(ran.stderr)
    if ran.returncode == 0 and runs:
        print(f"{name}: {int(runs[1]):,} files in {seconds} s, none of them wrong", flush=True)
        return 0
    print(ran.stdout[-4000:], ran.stderr[-8000:], f"{name}: FAILED with code {ran.returncode}", sep="\n", flush=True)
    return 1


def _fuzz(options: argparse.Namespace) -> None:
    """Fuzz a target; ends the process."""
    import atheris

    root = Path(__file__).parents[1]
    files = [path for room in KERNELS for path in (root / "cpuconv" / room).rglob("*.py")]
    compiled = [".".join(path.relative_to(root).with_suffix("").parts) for path in files]
    with atheris.instrument_imports(include=PACKAGES, exclude=compiled):
        from support.damage.fuzz_targets import TARGETS, make_corpus
    target = TARGETS[options.only]
    found, seeds = options.corpus / options.only, options.corpus / f"{options.only}-seeds"
    found.mkdir(parents=True, exist_ok=True)
    make_corpus(options.only, seeds)

    def changed(data: bytes, most: int, number: int) -> bytes:
        """As bytes, or as what they say."""
        if number % 3 == 0:
            data = atheris.Mutate(data, most)
        return target.change(data, number)[:most] if number % 6 else data

    options.crashes.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0], str(found), str(seeds), f"-max_total_time={options.seconds}", f"-timeout={_SLOW}",
        f"-rss_limit_mb={_MEGABYTES}", f"-max_len={_LONGEST}", f"-artifact_prefix={options.crashes}/{options.only}-",
        "-print_final_stats=1", f"-seed={options.seed}", "-len_control=0",
    ]  # fmt: skip
    atheris.Setup(arguments, target.read, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
