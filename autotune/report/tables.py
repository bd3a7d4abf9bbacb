"""Tables of the store's content, in all formats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from tabulate import tabulate

from autotune.report.page import page
from autotune.report.table_rows import COLUMNS, ProblemRow, Section, note_of, remedies, total_text, totals
from baselib import screen


def render(sections: Sequence[Section], format: str) -> str:
    """Format one table with totals per device and network, in one of `FORMATS`."""
    return RENDER[format](sections)


def shown(sections: Sequence[Section], width: int | None) -> str:
    """Format the tables for a terminal, in lines of at most `width` characters; None: any width."""
    return screen.as_text(_blocks(sections), width, "--wide shows all") + "\n"


def _blocks(sections: Sequence[Section]) -> Iterator[str | screen.Table]:
    columns = [column.on_screen() for column in COLUMNS]
    for section in sections:
        yield section.title
        for name, lines in section.networks().items():
            yield f"\n{name}"
            yield screen.Table(columns, [[column.cell(record) for column in COLUMNS] for record in _records(lines)])
            yield total_text(lines)
        notes = [f"bound by {name}: {remedy}" for name, remedy in remedies(section.lines).items()]
        yield "\n" + "\n".join(filter(None, [note_of(section.lines), *notes]))


def _records(lines: Sequence[ProblemRow]) -> list[dict[str, Any]]:
    return [line.record() for line in lines]


def _text(format: str, sections: Sequence[Section]) -> str:
    marks = ("## ", "### ", "- ") if format == "github" else ("", "", "")
    parts = []
    for section in sections:
        parts.append(f"{marks[0]}{section.title}")
        for name, lines in section.networks().items():
            rows = [[column.cell(record) for column in COLUMNS] for record in _records(lines)]
            titles = [column.title for column in COLUMNS]
            alignment = ["right" if column.is_number else "left" for column in COLUMNS]
            table = tabulate(rows, titles, tablefmt=format, colalign=alignment, disable_numparse=True)
            parts += [f"{marks[1]}{name}", table, total_text(lines)]
        if note := note_of(section.lines):
            parts.append(f"{marks[2]}{note}")
        if helps := remedies(section.lines):
            parts.append("\n".join(f"{marks[2]}bound by {name}: {remedy}" for name, remedy in helps.items()))
    return "\n\n".join(parts) + "\n"


def _csv(sections: Sequence[Section]) -> str:
    out = io.StringIO()
    records = [{"device": section.device.get("key"), **line.record()} for section in sections for line in section.lines]
    if records:
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return out.getvalue()


def _json(sections: Sequence[Section]) -> str:
    content: dict[str, Any] = {
        "devices": [
            {
                "device": dict(section.device),
                "networks": [
                    {"name": name, "problems": [line.record() for line in lines], "total": totals(lines)}
                    for name, lines in section.networks().items()
                ],
            }
            for section in sections
        ]
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


RENDER = {
    "github": lambda sections: _text("github", sections),
    "plain": lambda sections: _text("plain", sections),
    "html": page,
    "csv": _csv,
    "json": _json,
}
FORMATS = tuple(RENDER)
