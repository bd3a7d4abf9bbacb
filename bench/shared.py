"""A call on a machine that others use, beside ONNX Runtime: `python -m bench.shared --help`.

Two questions, for a few of the canonical lines. How much longer does a call on two threads take, in the median and at
the 99th percentile, while one other process computes? And under a control group's quota of 1.5 cores: one thread or
two? Each engine runs in a process of its own; the states alternate in rounds, and the other process is stopped while
the machine is to be quiet.
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
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/shared.py` works too

from tabulate import tabulate

from autotune import cores
from bench.engine import Engine
from bench.peers import OURS
from bench.shapes import load

LINES = (
    "mobilenetv2:dw144",
    "resnet50:res4b_2b",
    "resnet50:res2a_2a",
    "resnet50:res2a_2b",
    "resnet50:res3a_2b",
    "vgg16:conv4_2",
    "yolov3:32_64s2",
)
ENGINES = (OURS, "onnxruntime")
QUOTA, PERIOD = 1.5, 100_000  # cores; µs in which they are granted
_BUSY = "while True: pass"
_FIELDS = ("line", "engine", "quiet ms", "p99", "busy", "p99 busy")


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    args = parser().parse_args(argv)
    lines = load(pattern=args.lines) if args.lines else [line for line in load() if line.label in LINES]
    figures: dict[str, object] = {"threads": args.threads, "busy": {}, "quota": {}}
    rows = []
    for line in lines:
        found = beside_a_process(line.problem, args.threads, args.rounds, args.seconds)
        figures["busy"][line.label] = found
        rows += [(line.label, key, *_row(found[key])) for key in found]
    print(tabulate(rows, _FIELDS, floatfmt=("", "", ".3f", ".2f", ".2f", ".2f")))
    print("quiet: median; p99, busy (median), p99 busy: over the quiet median")
    try:
        with quota_group(QUOTA) as group:
            figures["quota"] = {
                line.label: under_quota(line.problem, group, args.rounds, args.seconds) for line in lines
            }
    except OSError as error:
        print(f"no quota: control groups cannot be made here ({error})")
    else:
        rows = [(name, *found.values()) for name, found in figures["quota"].items()]
        print(tabulate(rows, ("line", *next(iter(figures["quota"].values()))), floatfmt=".3f"))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.shared", description=__doc__)
    p.add_argument("--lines", default="", help="names of canonical lines, comma-separated (a handful)")
    p.add_argument("--threads", type=int, default=2, help="threads of the calls beside another process (2)")
    p.add_argument("--rounds", type=int, default=4, help="rounds (4)")
    p.add_argument("--seconds", type=float, default=0.2, help="of each state and engine in a round (0.2)")
    p.add_argument("--json", metavar="FILE", help="write the figures to a file")
    return p


def beside_a_process(problem: object, threads: int, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Seconds of single calls by engine and state: "quiet", and "busy" with one other process computing."""
    found: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(busy_process())
        engines = {key: stack.enter_context(contextlib.closing(Engine(key, threads))) for key in ENGINES}
        forms = {key: engine.prepare(problem)[0].form for key, engine in engines.items()}
        found = {key: {"quiet": [], "busy": []} for key in engines}
        for _ in range(rounds):
            for state, event in (("quiet", signal.SIGSTOP), ("busy", signal.SIGCONT)):
                os.kill(other.pid, event)
                for key, engine in engines.items():
                    found[key][state] += engine.time(forms[key], seconds)
    return found


def under_quota(problem: object, group: Path, rounds: int, seconds: float) -> dict[str, float]:
    """Mean milliseconds of a call in a group with a quota, one thread and two, and without it."""
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        engines = {n: stack.enter_context(contextlib.closing(Engine(OURS, n))) for n in (1, 2)}
        forms = {n: engine.prepare(problem)[0].form for n, engine in engines.items()}
        for engine in engines.values():  # after they were prepared: a process is told its threads by the quota
            (group / "cgroup.procs").write_text(str(engine._process.pid))
        for _ in range(rounds):
            for n, engine in engines.items():
                found.setdefault(n, []).extend(engine.time(forms[n], seconds))
    result = {}
    for n, times in found.items():
        result |= {f"{n} median": 1e3 * statistics.median(times), f"{n} p99": 1e3 * percentile(times, 0.99)}
        result |= {f"{n} mean": 1e3 * statistics.fmean(times), f"{n} worst": 1e3 * max(times)}
    return result


def percentile(times: Sequence[float], share: float) -> float:
    """The least of `times` that is not under `share` of them."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def _row(times: dict[str, list[float]]) -> tuple[float, ...]:
    level = statistics.median(times["quiet"])
    busy = statistics.median(times["busy"])
    return (
        1e3 * level,
        percentile(times["quiet"], 0.99) / level,
        busy / level,
        percentile(times["busy"], 0.99) / level,
    )


@contextlib.contextmanager
def busy_process() -> Iterator[subprocess.Popen]:
    """Another process that computes without end, stopped until it is told to go on."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def quota_group(quota: float, root: Path = cores.CGROUP) -> Iterator[Path]:
    """A new control group, of version 1 or 2, whose processes together get `quota` cores' worth of time.

    Raises:
        OSError: this process may not make one, or there are no control groups.
    """
    parent = root / "cpu" if (root / "cpu" / "cgroup.procs").exists() else root
    group = parent / f"cpuconv-bench-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD)))
        else:
            (group / "cpu.max").write_text(f"{int(quota * PERIOD)} {PERIOD}")
        yield group
    finally:
        for _ in range(50):  # until its processes have ended
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
