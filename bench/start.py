"""Measure the first result of a process, in cpuconv, ONNX Runtime and OpenVINO: `python -m bench.start --help`.

Every figure is of a new process that imports nothing else (`bench/first.py`). Engines start in turn. An extra first
round does not count: it reads files into memory and compiles modules to byte code, as pip does at installation. With an
empty cache folder, only the installed package of cpuconv is on disk; the other engines store nothing there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(ROOT := Path(__file__).resolve().parents[1]))  # so that `python bench/start.py` works too

from rich.console import Console
from tabulate import tabulate

from autotune.files import write_whole
from autotune.interpreter import python
from autotune.paths import VARIABLE
from bench.compare import INTERRUPTED, positive
from bench.settings import machine_name, words

NAMES = {"cpuconv": "cpuconv", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
SAVE = "save"
NOTHING = "–"


class Start(NamedTuple):
    """A kind of start.

    Attributes
    ----------
    what : str
        Argument of `bench.first`.
    label : str
    engines : tuple of str
    empty : bool
        Whether the cache folder is a new one, which only affects cpuconv.
    """

    what: str
    label: str
    engines: tuple[str, ...] = tuple(NAMES)
    empty: bool = False


CPUCONV_ONLY = ("cpuconv",)
EMPTY = ", empty cache"
STARTS = {
    "import": Start("import", "import"),
    "model": Start("model", MODEL := "import, compile, run"),
    "model-empty": Start("model", MODEL + EMPTY, CPUCONV_ONLY, empty=True),
    "saved": Start("saved", SAVED := "import, load saved, run"),
    "saved-empty": Start("saved", SAVED + EMPTY, CPUCONV_ONLY, empty=True),
    "conv2d": Start("conv2d", CONV2D := "import, conv2d", CPUCONV_ONLY),
    "conv2d-empty": Start("conv2d", CONV2D + EMPTY, CPUCONV_ONLY, empty=True),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each start and engine; return 1 if an engine failed, 130 when interrupted."""
    args = parser().parse_args(argv)
    engines = words(args.engines, NAMES, "--engines") or tuple(NAMES)
    starts = words(args.starts, STARTS, "--starts") or tuple(STARTS)
    data: dict[str, Any] = {
        "cpu": machine_name(),
        "python": args.python,
        "model": str(args.model),
        "threads": args.threads,
        "rounds": args.rounds,
        "empty_rounds": args.empty_rounds,
        "starts": {},
        "failed": {},
    }
    code = 0
    try:
        with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
            measure(args, [STARTS[name] for name in starts], engines, Path(folder), data)
    except KeyboardInterrupt:
        code = INTERRUPTED
    print(table(data))
    for engine, why in data["failed"].items():
        print(f"{NAMES[engine]} failed: {why}")
    if args.json:
        write_whole({args.json: json.dumps(data, indent=1) + "\n"})
    return code or int(bool(data["failed"]))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="bench.start", description=__doc__)
    p.add_argument("model", type=Path, metavar="MODEL", help="an ONNX file of fixed sizes and inputs of float32")
    p.add_argument("--starts", default="", metavar="NAMES", help=f"comma-separated, of {', '.join(STARTS)} (all)")
    p.add_argument("--engines", default="", metavar="NAMES", help=f"comma-separated, of {', '.join(NAMES)} (all)")
    p.add_argument("--rounds", type=positive, default=5, help="processes for each start and engine (5)")
    p.add_argument("--empty-rounds", type=positive, default=5, help="processes with an empty cache (5)")
    p.add_argument("--threads", type=positive, default=1, help="threads of each engine (1)")
    p.add_argument(
        "--python",
        metavar="FILE",
        help="interpreter with cpuconv and the others installed (this one, with this checkout)",
    )
    p.add_argument("--timeout", type=float, default=600.0, help="timeout per process, in seconds (600)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    return p


# --- runs -----------------------------------------------------------------------------------------------------------


def measure(
    args: argparse.Namespace, starts: Sequence[Start], engines: Sequence[str], folder: Path, data: dict[str, Any]
) -> None:
    """Start all engines in turn, and store medians in `data` as they come; `folder` is empty."""
    console = Console(stderr=True, highlight=False)
    cache = folder / "cache"
    failed: dict[str, str] = data["failed"]
    engines = [engine for engine in engines if any(engine in start.engines for start in starts)]
    for engine in engines:  # also puts kernels into the cache
        console.print(f"{NAMES[engine]}: prepares")
        _start(args, engine, SAVE, folder / engine, cache, failed)
    for start in starts:
        asked = [engine for engine in engines if engine in start.engines]
        rounds = args.empty_rounds if start.empty else args.rounds
        found: dict[str, list[dict[str, float]]] = {engine: [] for engine in asked}
        for turn in range(rounds if start.empty else 1 + rounds):
            console.print(f"{start.label}: round {turn}")
            for engine in asked:
                with tempfile.TemporaryDirectory(dir=folder) as new:
                    used = Path(new) if start.empty else cache
                    figures = _start(args, engine, start.what, folder / engine, used, failed)
                if figures and (turn or start.empty):
                    found[engine].append(figures)
        data["starts"][start.label] = {engine: _medians(each) for engine, each in found.items() if each}


def _start(
    args: argparse.Namespace, engine: str, what: str, saved: Path, cache: Path, failed: dict[str, str]
) -> dict[str, float] | None:
    """Return the figures of one start, or None if the engine failed, now or before."""
    if engine in failed:
        return None
    environ = {**os.environ, VARIABLE: str(cache), "OMP_NUM_THREADS": str(args.threads)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if args.python is not None:
        environ.pop("PYTHONPATH", None)  # measure what is installed there
    else:
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ["PYTHONPYCACHEPREFIX"] = str(saved.parent / "bytecode")
    command = python() if args.python is None else [args.python]
    command += [str(ROOT / "bench" / "first.py"), engine, what, str(args.threads)]
    command += {SAVE: [str(args.model), str(saved)], "saved": [str(saved)]}.get(what, [str(args.model)])
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=args.timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        failed[engine] = str(error)
        return None
    taken = time.perf_counter() - begun
    if done.returncode:
        failed[engine] = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        return None
    return {"process": taken, **json.loads(done.stdout.splitlines()[-1])}


def _medians(figures: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the median of each figure, None if one is unknown."""
    columns = {part: [each[part] for each in figures] for part in figures[0]}
    known = {part: [figure for figure in column if figure is not None] for part, column in columns.items()}
    return {part: statistics.median(known[part]) if len(known[part]) == len(figures) else None for part in columns}


# --- figures --------------------------------------------------------------------------------------------------------

COLUMNS = {  # by figure: column title, and factor from the measured unit; 0: a count
    "import": ("import s", 1.0),
    "ready": ("ready s", 1.0),
    "run": ("run s", 1.0),
    "all": ("all s", 1.0),
    "process": ("process s", 1.0),
    "modules": ("modules", 0),
    "most": ("most MB", 1e-6),
    "kept": ("in the end MB", 1e-6),
    "compiled": ("compiled", 0),
}


def table(data: Mapping[str, Any]) -> str:
    """Return the table with a row for each start and engine."""
    rows = [
        [label, NAMES[engine], *(_cell(figures.get(key), scale) for key, (_, scale) in COLUMNS.items())]
        for label, engines in data["starts"].items()
        for engine, figures in engines.items()
    ]
    title = f"{data['cpu']}; threads: {data['threads']}; medians of {data['rounds']} new processes"
    if data["empty_rounds"] != data["rounds"]:
        title += f", of {data['empty_rounds']} with an empty cache"
    headers = ["start", "engine", *(title for title, _ in COLUMNS.values())]
    return f"{title}\n\n{tabulate(rows, headers, disable_numparse=True, stralign='left')}"


def _cell(value: float | None, scale: float) -> str:
    if value is None:
        return NOTHING
    return f"{value:.0f}" if not scale else f"{value * scale:.{3 if scale == 1 else 1}f}"


if __name__ == "__main__":
    sys.exit(main())
