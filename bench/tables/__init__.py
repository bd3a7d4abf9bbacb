"""Device tables: the measurements of each device in this folder, made by `python -m bench.tables`.

A device has a `.json` with all measurements and a `.md` for readers. They are named by vendor, microarchitecture and
cores, because virtual machines with different CPUs may report the same model. Three pages show the tables between
their markers: `docs/performance/convolutions.md` the families of the device measured last, `docs/performance.md` one
row per table, `docs/performance/tables.md` families and lines of every device. The notes there are written by hand.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.machine.device import fingerprint
from baselib.interpreter import python
from bench import report
from bench.peers import CPUCONV
from bench.race import Race
from bench.settings import Settings
from bench.shapes import Line

FOLDER = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "performance"
FAMILIES, OVERVIEW, PAGE = DOCS / "convolutions.md", ROOT / "docs" / "performance.md", DOCS / "tables.md"
NOTED_BELOW = 1.05  # a line with a smaller ratio to the best peer needs a note
NO_DEVICE = "No device has been measured yet."
Data = dict[str, Any]


class Incomplete(Exception):
    """A table could not be completed, with the reason; `interrupted` if the user stopped it."""

    def __init__(self, why: str, interrupted: bool = False) -> None:
        super().__init__(why)
        self.interrupted = interrupted


def warm(lines: Sequence[Line], asked: Settings, effort: str) -> None:
    """Tune the lines in a separate process, which shows its progress; lines with stored results are skipped.

    Raises
    ------
    Incomplete
        If the tuner was interrupted, or a line has no result.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.txt"
        texts = (f'{line.problem.shape_key}n"{line.label}"{line.problem.types_key}\n' for line in lines)
        file.write_text("".join(texts), encoding="utf-8")
        options = ["--threads", str(asked.threads), "--layouts", asked.layouts[0], "--effort", effort]
        command = python("-m", "autotune", "warmup", str(file), *options)
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if code:
        raise Incomplete(f"the warmup ended with code {code}", interrupted=code == 130)


def measured(lines: Sequence[Line], asked: Settings, console: Console) -> tuple[Data, str]:
    """Measure one table; return it as data and as Markdown.

    Raises
    ------
    Incomplete
        If it was interrupted, or cpuconv has no figure on a line.
    """
    race = Race(lines, asked, console)
    race.measure_all()
    if race.interrupted:
        raise Incomplete("interrupted", interrupted=True)
    found = {result.line.label for result in race.results if result.of(CPUCONV) and len(result.runs) == asked.runs}
    if missing := [line.label for line in lines if line.label not in found]:
        raise Incomplete(f"cpuconv has no figure on {', '.join(missing)}")
    return report.to_dict(race.results, race.run), report.markdown(race.results, race.run, with_targets=True)


def files(made: Iterable[tuple[Data, str]]) -> dict[Path, str]:
    """Return the texts of a device's two files and of the pages that show them, by path."""
    tables, texts = zip(*made, strict=True)
    name = fingerprint().name
    data = {"cpu": tables[0]["cpu"], "tables": list(tables)}
    parts = (f"## {table['title']}\n\n{text}" for table, text in zip(tables, texts, strict=True))
    base = FOLDER / name
    return {
        base.with_name(f"{base.name}.json"): json.dumps(data, indent=1) + "\n",
        base.with_name(f"{base.name}.md"): "\n".join((f"# {heading(name, data)}\n", *parts)),
        **pages(kept() | {name: data}),
    }


def pages(devices: Mapping[str, Data]) -> dict[Path, str]:
    """Return the texts of the three pages with the tables of some devices, by path."""
    shown = {PAGE: block, OVERVIEW: headlines, FAMILIES: short}
    return {path: report.replaced(path, text(devices)) for path, text in shown.items()}


def kept() -> dict[str, Data]:
    """Load the devices with stored tables, by the name of their files."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def short(devices: Mapping[str, Data]) -> str:
    """Return the first table of the device measured last, by families."""
    if not devices:
        return NO_DEVICE
    name, device = max(devices.items(), key=lambda item: item[1]["tables"][0]["date"])
    return f"Measured on `{name}`: {report.summary(device['tables'][0])}"


def headlines(devices: Mapping[str, Data]) -> str:
    """Return the table of the overview: a row for each table of every device."""
    tables = [(heading(name, device), table) for name, device in sorted(devices.items()) for table in device["tables"]]
    return report.headlines_table(tables) if tables else NO_DEVICE


def block(devices: Mapping[str, Data]) -> str:
    """Return the tables of the page: every table of every device by families, and the lines of each device's first."""
    parts = []
    for name, device in sorted(devices.items()):
        parts.append(f"### {heading(name, device)}")
        for number, table in enumerate(device["tables"]):
            parts += [f"#### {table['title']}", report.caption(table), report.roofs_text(table)]
            parts += [report.families_table(table), *([] if number else [report.lines_table(table)])]
            parts += [*report.remarks(table), f"Below {NOTED_BELOW} against the best peer: {_lows(table)}."]
    return "\n\n".join(part for part in parts if part) or NO_DEVICE


def unexplained(devices: Mapping[str, Data]) -> list[str]:
    """Return the lines with a small ratio that the hand-written part of the page does not name."""
    page = PAGE.read_text(encoding="utf-8")
    notes = page.partition(report.BEGIN)[0] + page.partition(report.END)[2]
    tables = itertools.chain.from_iterable(device["tables"] for device in devices.values())
    return sorted({label for table in tables for label in _low(table) if label not in notes})


def heading(name: str, device: Data) -> str:
    """Return the heading of a device: its CPU, and the name of its files."""
    return f"{device['cpu']} ({name})"


def _low(table: Data) -> list[str]:
    return [line["label"] for line in table["lines"] if line["best_peer"] and line["best_peer"]["ratio"] < NOTED_BELOW]


def _lows(table: Data) -> str:
    return ", ".join(_low(table)) or "none"
