"""Time calls on a shared machine, in cpuconv and ONNX Runtime: `python -m bench.shared --help`.

Three measurements on a few canonical lines: calls on two threads while another process computes, the slowdown of that
process by an engine that calls and then waits, and calls on one and two threads under a control group's quota of 1.5
cores. Each engine runs in its own process. Quiet and busy states alternate in rounds; the other process is stopped in
the quiet state.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tabulate import tabulate

from autotune.machine import cores
from baselib.interpreter import python
from bench import options
from bench.engine import Engine
from bench.peers import CPUCONV
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
ENGINES = (CPUCONV, "onnxruntime")
WAITING = (*ENGINES, "openvino")  # engines next to which the other process is timed
QUOTA, PERIOD = 1.5, 100_000  # cores; length of the quota's period in µs
_REST = 3e-6 * PERIOD  # seconds between engines in a group, so that none is throttled for the previous one
_BUSY = """import mmap, sys
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
count = 0
while True:
    for _ in range(2000):
        pass
    count += 1
    shared[:] = count.to_bytes(8, "little")
"""  # counts its loops in a file
PAUSE = 0.02  # seconds between the calls of an engine that mostly waits
_ENDING = 50  # attempts, a tenth of a second apart, to remove a group after its processes end

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
    slow = {line.label: slowdown(line.problem, args.threads, *timing) for line in lines}
    print(tabulate([{"line": label} | found for label, found in slow.items()], headers="keys", floatfmt=".2f"))
    print(f"slowdown of another process next to calls on {args.threads} threads, {1e3 * PAUSE:g} ms between calls\n")
    quota: dict[str, Figures] = {}
    try:
        with quota_group(QUOTA, args.cgroups) as group:
            quota = {line.label: under_quota(line.problem, group, *timing) for line in lines}
    except OSError as error:
        print(f"Control groups cannot be made here: {error}")
    else:
        print(tabulate([{"line": label} | found for label, found in quota.items()], headers="keys", floatfmt=".2f"))
        print(f"ms, under a quota of {QUOTA:g} cores")
    options.write_json(args.json, {"threads": args.threads, "busy": busy, "slowdown": slow, "quota": quota})
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("shared", __doc__, "--lines", "--rounds", "--seconds", "--json", rounds=4, seconds=0.25)
    p.add_argument("--threads", type=int, default=2, help="threads of the calls next to another process (2)")
    p.add_argument("--cgroups", type=Path, default=cores.CGROUP, help="where control groups are (%(default)s)")
    return p


def beside_a_process(problem: ConvProblem, threads: int, rounds: int, seconds: float) -> dict[str, Figures]:
    """Return figures by engine: the quiet median, and calls while another process computes."""
    with contextlib.ExitStack() as stack:
        other, _ = stack.enter_context(busy_process())
        engines = {key: stack.enter_context(contextlib.closing(Engine(key, threads))) for key in ENGINES}
        forms = {key: engine.prepare(problem)[0].form for key, engine in engines.items()}
        times: dict[str, dict[str, list[float]]] = {key: {"quiet": [], "busy": []} for key in engines}
        for _ in range(rounds):
            for state, event in (("quiet", signal.SIGSTOP), ("busy", signal.SIGCONT)):
                os.kill(other.pid, event)
                for key, engine in engines.items():
                    times[key][state] += engine.time(forms[key], seconds)
    return {key: compared(**found) for key, found in times.items()}


def slowdown(problem: ConvProblem, threads: int, rounds: int, seconds: float) -> Figures:
    """Return the speed of another process alone, over its speed next to an engine that calls and waits in turn."""
    with contextlib.ExitStack() as stack:
        other, counter = stack.enter_context(busy_process())
        engines = {key: stack.enter_context(contextlib.closing(Engine(key, threads))) for key in WAITING}
        forms = {key: engine.prepare(problem)[0].form for key, engine in engines.items()}
        found: dict[str, list[float]] = {key: [] for key in engines}
        os.kill(other.pid, signal.SIGCONT)
        for _ in range(rounds):
            for key, engine in engines.items():
                alone = speed(counter, partial(time.sleep, seconds))
                found[key].append(alone / speed(counter, partial(engine.ask, "pace", forms[key], seconds, PAUSE)))
    return {key: statistics.median(ratios) for key, ratios in found.items()}


def speed(counter: Path, wait: Callable[[], object]) -> float:
    """Return how often per second a busy process counts while `wait` runs."""
    before, start = int.from_bytes(counter.read_bytes(), "little"), time.perf_counter()
    wait()
    return (int.from_bytes(counter.read_bytes(), "little") - before) / (time.perf_counter() - start)


def compared(quiet: Sequence[float], busy: Sequence[float]) -> Figures:
    """Return milliseconds and ratios from the seconds of calls on a quiet and on a busy machine."""
    level = statistics.median(quiet)
    return {
        "quiet ms": 1e3 * level,
        "quiet p99": percentile(quiet, 0.99) / level,
        "median": statistics.median(busy) / level,
        "mean": statistics.fmean(busy) / level,
        "p99": percentile(busy, 0.99) / level,
    }


def under_quota(problem: ConvProblem, group: Path, rounds: int, seconds: float) -> Figures:
    """Return milliseconds of cpuconv's calls on one thread and on two in a group with a quota."""
    times: dict[int, list[float]] = {1: [], 2: []}
    with contextlib.ExitStack() as stack:
        engines = {n: stack.enter_context(contextlib.closing(Engine(CPUCONV, n))) for n in times}
        forms = {n: engine.prepare(problem)[0].form for n, engine in engines.items()}
        for engine in engines.values():  # after the start: within the group, two threads would be refused
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
    """Return the smallest of `times` that at least `share` of them do not exceed."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


@contextlib.contextmanager
def busy_process() -> Iterator[tuple[subprocess.Popen, Path]]:
    """Start another process that computes endlessly, and counts in a file; it is stopped until SIGCONT."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(8))
        file.flush()
        process = subprocess.Popen(python("-c", _BUSY, file.name))
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield process, Path(file.name)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def quota_group(quota: float, root: Path) -> Iterator[Path]:
    """Create a control group, version 1 or 2, whose processes get the time of `quota` cores in total.

    `root` is the folder of the system's groups.

    Raises
    ------
    OSError
        If this process may not create one, or there are no control groups.
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
