"""Judge random convolutions of narrow elements, by candidates of every solver: `python tests/random_problems.py`.

    python tests/random_problems.py --types int8,bf16 --layouts NCHW16c --count 2000 --seed 1
    NUMBA_CPU_NAME=haswell python tests/random_problems.py      code for another CPU
    CPUCONV_TEST_LOWERED=znver4 python tests/random_problems.py     for one that this CPU cannot run (`support.lowered`)
    python tests/cpus.py --arm --problems --types int8 --count 100      on an emulated ARM (`support.emulated`)

Integers are equal to sums of int64 to the last bit, floats of 16 bits are within their bound, and nothing around arrays
is read or written. Each problem is planned as users plan it, by candidates drawn from what solvers offer, and every
fourth by the model too. Ends with code 1, and commands that try what failed alone. A kernel that is stopped ends the
process; the traceback shows the command as the name of a function.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import track

from support import lowered

lowered.install()

from support import emulated  # noqa: E402

emulated.install()

from cpuconv.conv import session  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.runtime.code.cache import Statistics  # noqa: E402
from support import random_problems as problems  # noqa: E402
from support.guarded import named  # noqa: E402
from support.oracle import Spoilt  # noqa: E402
from support.running.sharing import small_work_is_shared  # noqa: E402

_BY_MODEL = 4  # every so many problems are planned by the model too
_SHOWN = 10  # failures that are printed


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    if not faulthandler.is_enabled():  # as under pytest
        faulthandler.enable()
    with small_work_is_shared(), emulated.with_its_caches(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.current, "workspaces", Spoilt())
        if emulated.only_compiles():
            patch.setattr(problems, "judge", emulated.call)
        runs = [_run(family, layout, options) for family in options.types for layout in options.layouts]
    if options.json:
        isa, judged = current(), not emulated.only_compiles()
        told = {"isa": isa.name, "dots": [dot.name for dot in isa.dots], "seed": options.seed, "judged": judged}
        told |= {"runs": runs}
        text = json.dumps(told, indent=1)
        print(text) if str(options.json) == "-" else options.json.write_text(text + "\n")
    return 1 if any(run["failed"] for run in runs) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--types", type=_among(problems.FAMILIES), default=problems.FAMILIES, metavar="T,T")
    parser.add_argument("--layouts", type=_among(problems.LAYOUTS), default=problems.LAYOUTS, metavar="L,L")
    parser.add_argument("--count", type=int, default=2000, help="problems of each of the types in each layout (2000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them (0)")
    parser.add_argument("--candidates", type=int, default=1, help="of each problem, of as many solvers (1)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more of types and layout after so many")
    parser.add_argument("--json", type=Path, help="write what was tried here; - is the terminal")
    return parser


def _among(known: tuple[str, ...]) -> Any:
    def read(text: str) -> tuple[str, ...]:
        asked = tuple(text.split(","))
        if not {*asked} <= {*known}:
            raise argparse.ArgumentTypeError(f"must be among {','.join(known)}, not {text!r}")
        return asked

    return read


def _run(family: str, layout: str, options: argparse.Namespace) -> dict[str, Any]:
    """The problems of a family of types in a layout; what was tried."""
    screen, start = Console(stderr=True), time.monotonic()
    solvers: Counter[str] = Counter()
    failed: list[dict[str, str]] = []
    tried, compiled = 0, Statistics.compiled
    numbers = range(options.first, options.first + options.count)
    for number in track(numbers, f"{family} {layout}", console=screen, disable=not screen.is_terminal, transient=True):
        if time.monotonic() - start > options.seconds:
            break
        tried += 1
        drawn = problems.draw(family, layout, options.seed, number)
        chosen: list[Any] = problems.candidates(drawn, options.seed, number, options.candidates)
        command = (
            f"python {Path(__file__).parent.name}/{Path(__file__).name} --types {family} --layouts {layout}"
            f" --seed {options.seed} --first {number} --count 1 --candidates {options.candidates}"
        )
        for candidate in chosen + [None] * (number % _BY_MODEL == 0):
            try:
                made = named(command, lambda: problems.check(drawn, candidate))  # noqa: B023
                solvers[made.algorithm.partition("(")[0]] += 1
            except Exception as error:
                failed.append({"command": command, "problem": drawn.problem.key, "candidate": str(candidate)})
                if len(failed) <= _SHOWN:
                    said = "\n".join(f"{type(error).__name__}: {error}".splitlines()[:12])
                    print(f"{command}\n  {drawn.problem.key} by {candidate or 'the model'}\n{said}", flush=True)
    seconds, compiled = time.monotonic() - start, Statistics.compiled - compiled
    plans = "plans that were not run" if emulated.only_compiles() else "plans as expected"
    by = ", ".join(f"{name} {count}" for name, count in solvers.most_common())
    print(
        f"{family} {layout} on {current().name}: {tried} problems, {solvers.total()} {plans}, {len(failed)} not, "
        f"{compiled} kernels compiled, {seconds:.0f} s: {by}",
        flush=True,
    )
    return {
        "types": family, "layout": layout, "problems": tried, "plans": solvers.total(), "failed": failed,
        "solvers": dict(solvers), "compiled": compiled, "seconds": round(seconds, 1),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
