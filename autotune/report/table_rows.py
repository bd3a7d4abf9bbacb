"""Rows of the report tables: the best row of each problem of each network, per device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby
from typing import Any

from autotune.machine.device import microarchitecture
from autotune.machine.roofline import Roofs, Verdict, Work, busy_note, classify, roofs_for
from autotune.report.explain import ROOFS_UNKNOWN
from autotune.store.rows import COLD, RowLimits
from autotune.store.store import Row, Store, Use
from autotune.wisdom.tiers import Tiers
from autotune.workload import ADMITS, Workload
from baselib import screen
from baselib.data_classes import dataclass
from baselib.locks import lazy
from baselib.text import count_of, joined, number, size

FIGURES = ("time_us", "spread_us", "samples", "gflops", "error", "serial_fraction")


@dataclass(frozen=True)
class ProblemRow:
    """A problem of a network, and its best row.

    Attributes
    ----------
    row, tier
        The row and its tier of wisdom; None if no candidate solves the problem.
    work, roofs
        Work and roofs; None if unknown.
    remark : str or None
        Remark on the row, such as "provisional".
    summary : str
        Short description of the problem by the workload.
    """

    use: Use
    row: Row | None
    work: Work | None = None
    roofs: Roofs | None = None
    tier: str | None = None
    remark: str | None = None
    summary: str = ""

    @property
    def title(self) -> str:
        """The network's label of a problem, and its summary; only the latter where the label is the key."""
        nameless = self.summary and self.use.problem.startswith(self.use.label)
        return joined("" if nameless else self.use.label, self.summary)

    @property
    def algorithm(self) -> str | None:
        """Candidate of the best row."""
        return self.row.candidate if self.row else None

    @property
    def seconds(self) -> float:
        """Time of all executions in the network, in seconds; 0 without a row."""
        return self.use.count * self.row.median if self.row else 0.0

    @property
    def gflops(self) -> float:
        """GFLOP/s by the operations of the direct computation, independent of the algorithm."""
        return self.use.flops / self.row.median * 1e-9 if self.row else math.nan

    @lazy
    def verdict(self) -> Verdict | None:
        """The limit of the run; None without a row, its work or the roofs."""
        if self.row is None or self.work is None or self.roofs is None:
            return None
        return classify(self.work, self.roofs, self.row.median, cold=self.row.weights == COLD)

    @property
    def executed_gflops(self) -> float:
        """GFLOP/s by the operations that the algorithm executes; NaN if its work is unknown."""
        return self.work.flops / self.row.median * 1e-9 if self.row and self.work else math.nan

    def group(self) -> str:
        """Return the name of the line's table: a network with its threads and layouts."""
        use = self.use
        return ", ".join(part for part in (use.network, count_of(use.threads, "thread"), use.layouts) if part)

    def record(self) -> dict[str, Any]:
        """Return the line as JSON types: figures with units in their names, None where unknown."""
        use, row, verdict = self.use, self.row, self.verdict
        figures: dict[str, float | None] = dict.fromkeys(FIGURES)
        if row is not None:
            figures = {
                "time_us": row.median * 1e6,
                "spread_us": row.spread * 1e6,
                "samples": row.count,
                "gflops": self.gflops,
                "error": row.error,
                "serial_fraction": row.threads_fraction,
            }
        return {
            "network": use.network,
            "threads": use.threads,
            "layouts": use.layouts,
            "problem": use.label,
            "title": self.title,
            "summary": self.summary,
            "shape": use.problem,
            "count": use.count,
            "algorithm": self.algorithm,
            "weights": row.weights if row else None,
            "tier": self.tier,
            "remark": self.remark,
            **{name: None if value is None or math.isnan(value) else value for name, value in figures.items()},
            "total_ms": self.seconds * 1e3 if row else None,
            "roof_share": verdict.share if verdict else None,
            "bound_by": str(verdict) if verdict else None,
            "remedy": verdict.remedy if verdict else None,
            "workspace_bytes": row.workspace if row else None,
        }


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    name: str  # name of its figure in `ProblemRow.record`
    text: Callable[[Any], str] | None = None  # formats the figure
    aside: str = ""  # name of a text that is appended
    is_long: bool = False  # whether the text may take several lines
    rank: int = 0  # on a narrow screen, columns of the highest rank are dropped first, those of rank 0 never
    least: int | None = None  # min. width in characters when shortened there; None: never shortened

    @property
    def is_number(self) -> bool:
        return self.text is not None

    def on_screen(self) -> screen.Column:
        """Return the column for a table on a terminal."""
        return screen.Column(self.title, self.is_number, self.rank, self.least)

    def cell(self, record: Mapping[str, Any]) -> str:
        """Return the figure of a line's record as text, empty if unknown."""
        value = record[self.name]
        text = str(value or "") if self.text is None else self.text(value)
        return joined(text, record[self.aside]) if self.aside else text


def _decimals(format: str) -> Callable[[float | None], str]:
    return lambda value: number(value, format)


COLUMNS = (
    Column("problem", "title", least=14),
    Column("count", "count", str, rank=4),
    Column("time µs", "time_us", _decimals(".1f")),
    Column("± µs", "spread_us", _decimals(".1f"), rank=7),
    Column("algorithm", "algorithm", is_long=True, rank=1, least=14),
    Column("count × time ms", "total_ms", _decimals(".3f"), rank=6),
    Column("GFLOP/s", "gflops", _decimals(".1f"), rank=5),
    Column("of roof", "roof_share", _decimals(".0%"), rank=2),
    Column("bound by", "bound_by", rank=3),
    Column("serial", "serial_fraction", _decimals(".0%"), rank=8),
    Column("weights", "weights", rank=9),
    Column("from", "tier", aside="remark", rank=10),
    Column("error", "error", _decimals(".1e"), rank=11),
    Column("workspace", "workspace_bytes", size, rank=12),
    Column("shape", "shape", rank=13),
)


@dataclass(frozen=True)
class Section:
    """A device, its fields and key as in `Store.devices`, with its lines."""

    device: Mapping[str, Any]
    lines: Sequence[ProblemRow] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The CPU, with details that distinguish it from similar ones."""
        device = self.device
        known = microarchitecture(device.get("cpu_name", ""), device.get("features", ""))
        told = ", ".join(part for part in (known, device["isa"], count_of(device["cores"], "core")) if part)
        return f"{device['model'] or 'this device'} ({told})"

    def networks(self) -> dict[str, list[ProblemRow]]:
        """Return the lines by the name of their table."""
        return {name: list(group) for name, group in groupby(self.lines, key=ProblemRow.group)}


def best_lines(
    store: Store, device: str, workload: Workload, uses: Iterable[Use], accuracy: str = "standard"
) -> list[ProblemRow]:
    """Return the best row of each use on a device, as selected for a caller without limits."""
    fields, tiers = store.devices().get(device, {}), Tiers(workload.tables, store)
    limits = RowLimits.of(workload)._replace(accuracies=ADMITS[accuracy])
    lines = []
    for use in uses:
        found = tiers.lookup(device, use.problem, limits)
        line = ProblemRow(use, None, roofs=roofs_for(fields, use.threads), summary=workload.summary(use.problem))
        if found is not None:
            work = workload.work(use.problem, found.row.candidate)
            line = replace(line, row=found.row, work=work, tier=found.tier, remark=found.remark)
        lines.append(line)
    return lines


def totals(lines: Sequence[ProblemRow]) -> dict[str, Any]:
    """Return the totals of a network: executions, their time and GFLOP/s, and the share of the limiting roofs.

    Lines without a row are excluded; the share is None unless it is known for all other lines.
    """
    timed = [line for line in lines if line.row]
    seconds = sum(line.seconds for line in timed)
    flops = sum(line.use.count * line.use.flops for line in timed)
    at_roofs = [line.verdict.share * line.seconds for line in timed if line.verdict is not None]
    return {
        "layers": sum(line.use.count for line in timed),
        "time_ms": seconds * 1e3,
        "gflops": flops / seconds * 1e-9 if seconds else None,
        "roof_share": sum(at_roofs) / seconds if timed and len(at_roofs) == len(timed) else None,
        "missing": len(lines) - len(timed),
    }


def total_text(lines: Sequence[ProblemRow]) -> str:
    """Return the totals in words."""
    total = totals(lines)
    parts = [f"total: {total['layers']} executions", f"{total['time_ms']:.3f} ms"]
    if total["gflops"]:
        parts.append(f"{total['gflops']:.1f} GFLOP/s")
    if total["roof_share"] is not None:
        parts.append(f"{total['roof_share']:.0%} of the roofs")
    elif all(line.roofs is None for line in lines):
        parts.append(ROOFS_UNKNOWN)
    return ", ".join(parts) + (f"; {total['missing']} without a result" if total["missing"] else "")


def whole_text(seconds: float, lines: Sequence[ProblemRow]) -> str:
    """Describe the time of a network's whole run, and the part of its lines, which were timed separately."""
    whole, timed = f"{seconds * 1e3:.2f} ms for a whole run", sum(line.seconds for line in lines)
    if not timed:
        return whole
    if timed > seconds:
        return f"{whole}; the rows, timed alone with weights from memory, sum to {timed * 1e3:.2f}"
    rest = (seconds - timed) * 1e3
    return (
        f"{whole}: {timed * 1e3:.2f} in the rows above, {rest:.2f} in other operators and reorders ('cpuconv profile')"
    )


def note_of(lines: Sequence[ProblemRow]) -> str | None:
    """Return a note if a line exceeds its roof; else None."""
    return busy_note(line.verdict.share for line in lines if line.verdict is not None)


def remedies(lines: Sequence[ProblemRow]) -> dict[str, str]:
    """Return advice by the kinds of limits among the lines."""
    return {str(line.verdict): line.verdict.remedy for line in lines if line.verdict is not None}
