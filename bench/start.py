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
from typing import Any

from rich.console import Console
from tabulate import tabulate

from baselib.interpreter import python
from baselib.paths import VARIABLE
from bench import options
from bench.first import NAMES
from bench.peers import CPUCONV
from bench.report import NOTHING
from bench.settings import machine_name

ROOT = Path(__file__).resolve().parents[1]
SAVE = "save"
EMPTY = "-empty"  # ending of starts with a new cache folder, which only affects cpuconv
STARTS = {
    "import": "import",
    "model": "import, compile, run",
    "saved": "import, load saved, run",
    "conv2d": "import, conv2d",
}
STARTS |= {name + EMPTY: f"{label}, empty cache" for name, label in STARTS.items() if name != "import"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each model, start and engine; return 1 if an engine failed, 130 when interrupted."""
    args = parser().parse_args(argv)
    engines = options.words(args.engines, NAMES, "--engines") or tuple(NAMES)
    starts = options.words(args.starts, STARTS, "--starts") or tuple(STARTS)
    data: dict[str, Any] = {"cpu": machine_name(), "rows": [], "failed": []}
    data |= {name: getattr(args, name) for name in ("python", "threads", "rounds")}
    code = 0
    try:
        for model in args.models:
            with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
                measure(args, model, starts, engines, Path(folder), data)
    except KeyboardInterrupt:
        code = options.INTERRUPTED
    print(table(data), *data["failed"], sep="\n")
    options.write_json(args.json, data)
    return code or int(bool(data["failed"]))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("start", __doc__, "--rounds", "--timeout", "--json")
    p.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="ONNX files with fixed sizes, float32 inputs")
    p.add_argument("--starts", default="", metavar="NAMES", help=f"comma-separated, of {', '.join(STARTS)} (all)")
    p.add_argument("--engines", default="", metavar="NAMES", help=f"comma-separated, of {', '.join(NAMES)} (all)")
    p.add_argument("--threads", type=options.positive, default=1, help="threads of each engine (1)")
    installed = "interpreter with cpuconv and the others installed (this one, with this checkout)"
    p.add_argument("--python", metavar="FILE", help=installed)
    return p


def measure(
    args: argparse.Namespace,
    model: Path,
    starts: Sequence[str],
    engines: Sequence[str],
    folder: Path,
    data: dict[str, Any],
) -> None:
    """Start all engines in turn, and store medians in `data` as they come; `folder` is empty."""
    console = Console(stderr=True, highlight=False)
    cache = folder / "cache"
    working = list(engines)

    def start(engine: str, what: str, used: Path) -> dict[str, float | None] | None:
        """Return the figures of one start; an engine that fails does not start again."""
        found = started(args, engine, what, model, folder / engine, used)
        if isinstance(found, str):
            data["failed"].append(f"{model.stem}: {NAMES[engine]} failed: {found}")
            working.remove(engine)
            return None
        return found

    for engine in tuple(working):  # also puts kernels into the cache
        console.print(f"{model.stem}: {NAMES[engine]} prepares")
        start(engine, SAVE, cache)
    for kind in starts:
        what, empty = kind.removesuffix(EMPTY), kind.endswith(EMPTY)
        found: dict[str, list[dict[str, float | None]]] = {}
        for turn in range(empty, 1 + args.rounds):
            console.print(f"{model.stem}: {STARTS[kind]}: round {turn}")
            for engine in [each for each in working if each == CPUCONV or not (empty or what == "conv2d")]:
                with tempfile.TemporaryDirectory(dir=folder) as new:
                    figures = start(engine, what, Path(new) if empty else cache)
                if figures and turn:
                    found.setdefault(engine, []).append(figures)
        data["rows"] += [
            {"model": model.stem, "start": STARTS[kind], "engine": engine, **_medians(each)}
            for engine, each in found.items()
        ]


def started(
    args: argparse.Namespace, engine: str, what: str, model: Path, saved: Path, cache: Path
) -> dict[str, float | None] | str:
    """Start an engine in a new process; return its figures, or why it failed."""
    environ = {**os.environ, VARIABLE: str(cache), "OMP_NUM_THREADS": str(args.threads)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if args.python is not None:
        environ.pop("PYTHONPATH", None)  # measure what is installed there
    else:
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ["PYTHONPYCACHEPREFIX"] = str(saved.parent / "bytecode")
    command = python() if args.python is None else [args.python]
    command += [str(ROOT / "bench" / "first.py"), engine, what, str(args.threads)]
    command += {SAVE: [str(model), str(saved)], "saved": [str(saved)]}.get(what, [str(model)])
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=args.timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    taken = time.perf_counter() - begun
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    return {"process": taken, **json.loads(done.stdout.splitlines()[-1])}


def _medians(figures: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the median of each figure, None if one is unknown."""
    columns = {part: [each[part] for each in figures] for part in figures[0]}
    known = {part: [figure for figure in column if figure is not None] for part, column in columns.items()}
    return {part: statistics.median(known[part]) if len(known[part]) == len(figures) else None for part in columns}


COLUMNS = {  # by figure: column title, and factor from the measured unit; 0: a count
    "import": ("import s", 1.0),
    "ready": ("ready s", 1.0),
    "run": ("run s", 1.0),
    "all": ("all s", 1.0),
    "again": ("again s", 1.0),
    "process": ("process s", 1.0),
    "modules": ("modules", 0),
    "imported": ("imported MB", 1e-6),
    "most": ("most MB", 1e-6),
    "kept": ("in the end MB", 1e-6),
    "compiled": ("compiled", 0),
}


def table(data: Mapping[str, Any]) -> str:
    """Return the table with a row for each model, start and engine."""
    rows = [
        [
            row["model"],
            row["start"],
            NAMES[row["engine"]],
            *(_cell(row.get(key), by) for key, (_, by) in COLUMNS.items()),
        ]
        for row in data["rows"]
    ]
    title = f"{data['cpu']}; threads: {data['threads']}; medians of {data['rounds']} new processes"
    headers = ["model", "start", "engine", *(title for title, _ in COLUMNS.values())]
    return f"{title}\n\n{tabulate(rows, headers, disable_numparse=True, stralign='left')}"


def _cell(value: float | None, scale: float) -> str:
    if value is None:
        return NOTHING
    return f"{value:.0f}" if not scale else f"{value * scale:.{3 if scale == 1 else 1}f}"


if __name__ == "__main__":
    sys.exit(main())
