"""Tables of what the store holds."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tabulate import tabulate

from autotune.store import Row, Store, Use
from autotune.workload import ADMITS, Candidate, Rejected

FORMATS = ("github", "plain", "html", "csv", "json")


@dataclass(frozen=True)
class Line:
    """A problem of a network with its best row; the row is None if nothing solves it."""

    use: Use
    row: Row | None
    peak: float  # GFLOP/s that the threads can reach, NaN if not measured

    @property
    def gflops(self) -> float:
        return self.use.flops / self.row.median * 1e-9 if self.row else math.nan

    def group(self) -> str:
        """The table that the line belongs to: a network with its threads and layouts."""
        threads = "1 thread" if self.use.threads == 1 else f"{self.use.threads} threads"
        return ", ".join(part for part in (self.use.network, threads, self.use.layouts) if part)

    def record(self) -> dict[str, Any]:
        """The figures with their units in their names; None where unknown."""
        use, row = self.use, self.row
        figures: dict[str, float | None] = dict.fromkeys(("time_us", "spread_us", "gflops", "peak_share", "error"))
        if row is not None:
            figures = {
                "time_us": row.median * 1e6,
                "spread_us": row.spread * 1e6,
                "gflops": self.gflops,
                "peak_share": self.gflops / self.peak,
                "error": row.error,
            }
        return {
            "network": use.network,
            "threads": use.threads,
            "layouts": use.layouts,
            "problem": use.label,
            "count": use.count,
            "shape": use.problem,
            "algorithm": row.candidate if row else None,
            **{name: None if value is None or math.isnan(value) else value for name, value in figures.items()},
            "workspace_bytes": row.workspace if row else None,
        }


def best_lines(store: Store, device: str, sources: str, uses: Iterable[Use], accuracy: str = "standard") -> list[Line]:
    """The best row of each use, as a caller with no limits gets it."""
    roofs = store.devices().get(device, {}).get("roofs", {})
    peak = roofs.get("fma_gflops", math.nan)
    return [
        Line(use, store.best(device, use.problem, sources=sources, accuracies=ADMITS[accuracy]), peak * use.threads)
        for use in uses
    ]


def totals(lines: Sequence[Line]) -> dict[str, Any]:
    """Of one network: layers, and the seconds and GFLOP/s of all executions together; lines without a row excluded."""
    timed = [(line.use, line.row) for line in lines if line.row]
    seconds = sum(use.count * row.median for use, row in timed)
    flops = sum(use.count * use.flops for use, _ in timed)
    return {
        "layers": sum(use.count for use, _ in timed),
        "time_ms": seconds * 1e3,
        "gflops": flops / seconds * 1e-9 if seconds else None,
        "missing": len(lines) - len(timed),
    }


def render(lines: Sequence[Line], format: str, *, device: dict[str, Any] | None = None) -> str:
    """The lines as a table for each network with its totals.

    Arguments:
        format: one of `FORMATS`.  device: its fields, shown above (json and html).
    """
    networks = {name: list(group) for name, group in groupby(lines, key=Line.group)}
    return RENDER[format](networks, device or {})


def render_candidates(rows: Sequence[Row], untimed: Sequence[Candidate | Rejected], flops: float, format: str) -> str:
    """Every candidate of one problem: timed ones best first, then those left out and why, then those only estimated."""
    table = [
        (
            row.candidate,
            f"{row.median * 1e6:.1f} ± {row.spread * 1e6:.1f}" if row.state == "ok" else "",
            f"{flops / row.median * 1e-9:.1f}" if row.state == "ok" else "",
            _number(row.error, ".1e"),
            _bytes(row.workspace),
            row.reason or f"{row.count} samples, {row.accuracy}",
        )
        for row in rows
    ]
    for other in untimed:
        if isinstance(other, Rejected):
            table.append((other.name, "", "", "", "", other.reason))
        else:
            note = f"not timed: estimate {other.estimate * 1e6:.1f} µs, at least {other.bound * 1e6:.1f} µs"
            table.append((other.name, "", "", "", _bytes(other.workspace), note))
    headers = ("algorithm", "time µs", "GFLOP/s", "error", "workspace", "note")
    return tabulate(table, headers, tablefmt=format, colalign=("left", *["right"] * 4, "left"), disable_numparse=True)


HEADERS = (
    "problem", "count", "shape", "algorithm", "time µs", "± µs", "GFLOP/s", "of peak", "error", "workspace",
)  # fmt: skip


def _cells(line: Line) -> tuple[str, ...]:
    record = line.record()
    return (
        record["problem"],
        str(record["count"]),
        record["shape"],
        record["algorithm"] or "none",
        _number(record["time_us"], ".1f"),
        _number(record["spread_us"], ".1f"),
        _number(record["gflops"], ".1f"),
        _number(record["peak_share"], ".0%"),
        _number(record["error"], ".1e"),
        _bytes(record["workspace_bytes"]),
    )


def _table(lines: Sequence[Line], format: str) -> str:
    rows = [_cells(line) for line in lines]
    alignment = ("left", "right", "left", "left", *["right"] * 6)
    return tabulate(rows, HEADERS, tablefmt=format, colalign=alignment if rows else None, disable_numparse=True)


def _total_text(lines: Sequence[Line]) -> str:
    total = totals(lines)
    speed = f", {total['gflops']:.1f} GFLOP/s" if total["gflops"] else ""
    missing = f"; {total['missing']} without a result" if total["missing"] else ""
    return f"total: {total['layers']} executions, {total['time_ms']:.3f} ms{speed}{missing}"


def _text(format: str, networks: dict[str, list[Line]], device: dict[str, Any]) -> str:
    heading = "### {}" if format == "github" else "{}"
    parts = [
        f"{heading.format(name)}\n\n{_table(lines, format)}\n\n{_total_text(lines)}\n"
        for name, lines in networks.items()
    ]
    return "\n".join(parts)


def _html(networks: dict[str, list[Line]], device: dict[str, Any]) -> str:
    parts = [
        f"<h2>{html.escape(name)}</h2>\n{_table(lines, 'html')}\n<p>{html.escape(_total_text(lines))}</p>\n"
        for name, lines in networks.items()
    ]
    title = html.escape(str(device.get("model") or "This device"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{title}</title>\n<style>body{{font-family:sans-serif}}'
        "table{border-collapse:collapse}td,th{padding:.2em .6em;border-bottom:1px solid #ddd}</style></head>\n"
        f"<body><h1>{title}</h1>\n{''.join(parts)}</body></html>\n"
    )


def _csv(networks: dict[str, list[Line]], device: dict[str, Any]) -> str:
    out = io.StringIO()
    records = [line.record() for lines in networks.values() for line in lines]
    if records:
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return out.getvalue()


def _json(networks: dict[str, list[Line]], device: dict[str, Any]) -> str:
    content = {
        "device": device,
        "networks": [
            {"name": name, "problems": [line.record() for line in lines], "total": totals(lines)}
            for name, lines in networks.items()
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


RENDER = {
    "github": lambda networks, device: _text("github", networks, device),
    "plain": lambda networks, device: _text("plain", networks, device),
    "html": _html,
    "csv": _csv,
    "json": _json,
}


def _number(value: float | None, format: str) -> str:
    return "" if value is None or math.isnan(value) else f"{value:{format}}"


def _bytes(count: int | None) -> str:
    """A count of bytes in the unit that leaves one to three digits before the point."""
    if not count:
        return "" if count is None else "0"
    power = min(3, int(math.log2(count)) // 10)
    return f"{count / (1 << 10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
