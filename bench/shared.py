"""A call on a machine that others use, beside ONNX Runtime: `python -m bench.shared --help`.

Two questions, for a few of the canonical lines. How much longer does a call on two threads take while one other process
computes? And under a control group's quota of 1.5 cores: one thread or two? Each engine runs in a process of its own;
the states alternate in rounds, and the other process is stopped while the machine is to be quiet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/shared.py` works too

from tabulate import tabulate

from autotune.interpreter import python
from autotune.machine import cores
from bench.engine import Engine
from bench.peers import OURS
from bench.shapes import load
from cpuconv.problem.problem import ConvProblem

LINES = (
    "resnet50:res2a_2a",
    "resnet50:res2a_2b",
    "resnet50:res3a_2b",
    "vgg16:conv4_2",
    "mobilenetv2:dw144",
    "yolov3:32_64s2",
)
ENGINES = (OURS, "onnxruntime")
QUOTA, PERIOD = 1.5, 100_000  # cores; µs of the period in which they are granted
_REST = 3e-6 * PERIOD  # seconds between engines in a group: none pays for the time that the one before has used
_BUSY = "while True: pass"
_ENDING = 50  # looks, a tenth of a second apart, whether a group's processes have ended

Figures = dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    args = parser().parse_args(argv)
    lines = load(pattern=args.lines) if args.lines else [line for line in load() if line.label in LINES]
    timing = args.rounds, args.seconds
    busy = {line.label: beside_a_process(line.problem, args.threads, *timing) for line in lines}
    rows = [{"line": label, "engine": key} | found[key] for label, found in busy.items() for key in found]
    print(tabulate(rows, headers="keys", floatfmt=".2f"))
    print(f"{args.threads} threads; ms, and beside one other process over the quiet median\n")
    quota: dict[str, Figures] = {}
    try:
        with quota_group(QUOTA, args.cgroups) as group:
            quota = {line.label: under_quota(line.problem, group, *timing) for line in lines}
    except OSError as error:
        print(f"Control groups cannot be made here: {error}")
    else:
        print(tabulate([{"line": label} | found for label, found in quota.items()], headers="keys", floatfmt=".2f"))
        print(f"ms, under a quota of {QUOTA:g} cores")
    if args.json:
        Path(args.json).write_text(json.dumps({"threads": args.threads, "busy": busy, "quota": quota}, indent=1) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.shared", description=__doc__)
    p.add_argument("--lines", default="", help="regular expression of canonical lines (six of them)")
    p.add_argument("--threads", type=int, default=2, help="threads of the calls beside another process (2)")
    p.add_argument("--rounds", type=int, default=4, help="rounds (4)")
    p.add_argument("--seconds", type=float, default=0.25, help="of each state and engine in a round (0.25)")
    p.add_argument("--cgroups", type=Path, default=cores.CGROUP, help="where control groups are (%(default)s)")
    p.add_argument("--json", metavar="FILE", help="write the figures to a file")
    return p


def beside_a_process(problem: ConvProblem, threads: int, rounds: int, seconds: float) -> dict[str, Figures]:
    """By engine: the quiet median, and what calls take beside another process."""
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(busy_process())
        engines = {key: stack.enter_context(contextlib.closing(Engine(key, threads))) for key in ENGINES}
        forms = {key: engine.prepare(problem)[0].form for key, engine in engines.items()}
        times: dict[str, dict[str, list[float]]] = {key: {"quiet": [], "busy": []} for key in engines}
        for _ in range(rounds):
            for state, event in (("quiet", signal.SIGSTOP), ("busy", signal.SIGCONT)):
                os.kill(other.pid, event)
                for key, engine in engines.items():
                    times[key][state] += engine.time(forms[key], seconds)
    return {key: compared(**found) for key, found in times.items()}


def compared(quiet: Sequence[float], busy: Sequence[float]) -> Figures:
    """Milliseconds and ratios of the seconds of calls on a quiet and on a busy machine."""
    level = statistics.median(quiet)
    return {
        "quiet ms": 1e3 * level,
        "quiet p99": percentile(quiet, 0.99) / level,
        "median": statistics.median(busy) / level,
        "mean": statistics.fmean(busy) / level,
        "p99": percentile(busy, 0.99) / level,
    }


def under_quota(problem: ConvProblem, group: Path, rounds: int, seconds: float) -> Figures:
    """Milliseconds of our calls on one thread and on two in a group with a quota."""
    times: dict[int, list[float]] = {1: [], 2: []}
    with contextlib.ExitStack() as stack:
        engines = {n: stack.enter_context(contextlib.closing(Engine(OURS, n))) for n in times}
        forms = {n: engine.prepare(problem)[0].form for n, engine in engines.items()}
        for engine in engines.values():  # only now: in the group, two threads would be refused
            (group / "cgroup.procs").write_text(str(engine.pid))
        for _ in range(rounds):
            for n, engine in engines.items():
                time.sleep(_REST)
                times[n] += engine.time(forms[n], seconds)
    return {
        f"{n} thread{'s' * (n > 1)}, {name}": 1e3 * value
        for n, found in times.items()
        for name, value in _spread(found).items()
    }


def _spread(times: Sequence[float]) -> Mapping[str, float]:
    return {"median": statistics.median(times), "p99": percentile(times, 0.99), "longest": max(times)}


def percentile(times: Sequence[float], share: float) -> float:
    """The least of `times` that is not below `share` of them."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


@contextlib.contextmanager
def busy_process() -> Iterator[subprocess.Popen]:
    """Another process that computes without end, stopped until it is told to go on."""
    process = subprocess.Popen(python("-c", _BUSY))
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def quota_group(quota: float, root: Path) -> Iterator[Path]:
    """A new control group, of version 1 or 2, whose processes together get `quota` cores' worth of time.

    `root`: where the system's groups are.

    Raises
    ------
    OSError
        This process may not make one, or there are no control groups.
    """
    first = root / "cpu"
    group = (first if first.is_dir() else root) / f"cpuconv-bench-{os.getpid()}"
    group.mkdir()
    try:
        if first.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD)))
        else:
            (group / "cpu.max").write_text(f"{int(quota * PERIOD)} {PERIOD}")
        yield group
    finally:
        for _ in range(_ENDING):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
